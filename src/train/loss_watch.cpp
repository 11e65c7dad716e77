#include "train/loss_watch.h"

#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <utility>
#include <vector>

#include "base/output.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/losses.h"
#include "comm/agree.h"
#include "train/loss_spikes.h"
#include "train/set_up.h"

namespace gptrain::inline train {
namespace {

constexpr double not_finite = std::numeric_limits<double>::quiet_NaN();

}  // namespace

void LossWatch::begin(const RunProgress& progress) {
  data_.leave_out(LeftOutSamples(join(context_.config.data.skip_samples, progress.left_out)));
  agree_on(context_.all(), context_.world,
           [&] { check_length(context_.config.batch.global, context_.config.run.steps, data_, progress); });
  // A checkpoint whose last step was not skipped has lost its loss to a validation.
  lost_validation_ = progress.loss && !std::isfinite(*progress.loss) && progress.skipped_in_a_row == 0 &&
                     !context_.config.data.validation.empty();
  step_loss_.reset();
}

void LossWatch::look(RunProgress& progress, const StepResult& result) {
  step_loss_ = progress.loss;
  if (lost_validation_) progress.loss = not_finite;
  const RollbackConfig& rollback = context_.config.run.rollback;
  if (!rollback.is_on()) {
    progress.losses = {};
  } else if (!spiked_ && !result.lowered_loss_scale()) {
    add_loss(rollback, result.skipped ? not_finite : result.loss, progress.losses);
    spike_end_ = progress.step;
  }
  spiked_ = is_spike(rollback, progress.losses);
  doubtful_ = result.skipped || !progress.losses.above.empty();
}

void LossWatch::end_if_diverged(const RunProgress& progress) {
  const int64_t most = context_.config.run.max_skipped_steps;
  if (progress.skipped_in_a_row <= most) return;
  folder_.record([&] { reporter_.write_page(); });
  checkpoints_.end_last_save();
  throw diverged(fmt::format("loss or gradients were not finite for {} in a row (run.max_skipped_steps = {}); {}",
                             format_counted(progress.skipped_in_a_row, "step"), most, way_back()));
}

void LossWatch::note_validation(RunProgress& progress, bool is_lost) {
  if (lost_validation_ && !is_lost) progress.loss = step_loss_;
  lost_validation_ = is_lost;
  if (!is_lost) return;
  doubtful_ = true;
  progress.loss = not_finite;
  checkpoints_.distrust();
  if (context_.leads())
    print_err("warning: the validation loss after step {} is not finite: the state is damaged{}\n", progress.step,
              before_rise());
}

void LossWatch::end_if_lost(const RunProgress& progress) const {
  const bool has_lost_loss = progress.loss && !std::isfinite(*progress.loss);
  if (progress.skipped_in_a_row == 0 && !has_lost_loss) return;
  if (progress.skipped_in_a_row == 0)
    throw diverged(
        fmt::format("the validation loss after the last step, {}, is not finite; earlier checkpoints in {} "
                    "are kept{}",
                    progress.step, (folder_.out() / "checkpoints").string(), before_rise()));
  throw diverged(fmt::format("loss or gradients were not finite in the last {}; earlier checkpoints in {} are kept{}",
                             format_counted(progress.skipped_in_a_row, "step"),
                             (folder_.out() / "checkpoints").string(), before_rise()));
}

RunProgress LossWatch::go_back(const RunProgress& progress) {
  context_.world.activity().set_phase("rollback");
  const RollbackConfig& rollback = context_.config.run.rollback;
  const std::string spike = spike_text(progress.losses);
  if (progress.rollbacks >= rollback.limit) {
    folder_.record([&] { reporter_.write_page(); });
    checkpoints_.end_last_save();
    throw diverged(fmt::format("{}, and the run has gone back {} already (run.rollback.limit)", spike,
                               format_counted(progress.rollbacks, "time")));
  }
  spiked_ = doubtful_ = false;
  const int64_t first = spike_end_ - std::ssize(progress.losses.above) + 1;
  std::optional<RunProgress> found = checkpoints_.go_back(first);
  if (!found) {
    if (context_.leads())
      print_err("warning: {}; no checkpoint was saved before step {}, so the run cannot go back, and goes on\n", spike,
                first);
    RunProgress same = progress;
    accept_spike(same.losses);
    return same;
  }
  RunProgress back = std::move(*found);
  const SampleRange more{data_.left_out().position_of(back.samples), rollback.skip_samples};
  back.left_out = join(std::move(back.left_out), {more});
  back.rollbacks = progress.rollbacks + 1;
  back.losses.above.clear();
  begin(back);
  reporter_.report_rollback({back.rollbacks, spike_end_, back.step, progress.losses.above.back(), more, spike});
  checkpoints_.replace_checkpoint(back);
  return back;
}

// Returns an empty text on all ranks but 0, which prints the message.
std::string LossWatch::way_back() const {
  if (!context_.leads()) return "";
  if (list_checkpoints(folder_.out()).empty()) return "no checkpoint was saved before";
  return fmt::format("the last checkpoint in {} is untouched{}", (folder_.out() / "checkpoints").string(),
                     before_rise());
}

std::string LossWatch::before_rise() const { return context_.leads() ? way_before_rise(folder_.out()) : std::string(); }

std::string LossWatch::spike_text(const LossHistory& losses) const {
  const LossSpread spread = spread_of(losses);
  return fmt::format(
      "the loss spiked for {} up to step {}: {:.4f} is more than {} standard deviations of {:.4f} above {:.4f}, the "
      "mean of "
      "{} steps before",
      format_counted(std::ssize(losses.above), "step"), spike_end_, losses.above.back(),
      context_.config.run.rollback.spike, spread.deviation, spread.mean, losses.window.size());
}

// All ranks diverge alike, so only one prints the message.
Error LossWatch::diverged(const std::string& what) const {
  return {ExitCode::diverged, context_.leads() ? "training diverged: " + what : std::string()};
}

}  // namespace gptrain::train
