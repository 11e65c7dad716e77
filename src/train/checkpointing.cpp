#include "train/checkpointing.h"

#include <chrono>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/output.h"
#include "base/progress.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "comm/texts.h"
#include "train/signals.h"

namespace gptrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t elements_of(const std::vector<StatePiece>& state) {
  int64_t elements = 0;
  for (const StatePiece& piece : state) elements += piece.count();
  return elements;
}

}  // namespace

Checkpointing::Checkpointing(const RunContext& context, FolderWatch& folder, TrainingStep& step, Reporter& reporter,
                             const std::optional<TokenizerRecord>& tokenizer)
    : context_(context), folder_(folder), step_(step), reporter_(reporter), tokenizer_(tokenizer) {}

RunProgress Checkpointing::start(const std::optional<fs::path>& checkpoint, const std::optional<fs::path>& weights) {
  if (checkpoint) {
    const RunProgress progress = load_state(*checkpoint, step_, context_.groups, context_.world);
    saved_step_ = progress.step;
    if (context_.leads()) print_out("resumed from {} (step {})\n", checkpoint->string(), progress.step);
    return progress;
  }
  if (context_.leads()) {
    const uint64_t seed = context_.config.run.seed;
    if (weights) {
      print_out("starting at step 0 (seed {})\n", seed);
    } else {
      print_out("starting from scratch (seed {})\n", seed);
    }
    flush_lines();
    Progress bar("initial weights", elements_of(step_.state()));
    step_.initialize([&](int64_t drawn) { bar.update(drawn); });
    bar.finish();
  } else {
    step_.initialize();
  }
  if (weights) start_from_weights(*weights);
  return {};
}

void Checkpointing::start_from_weights(const fs::path& checkpoint) {
  const std::vector<std::string> changes = load_weights(checkpoint, step_, context_.groups, context_.world);
  if (!context_.leads()) return;
  print_out("with the weights of {} (step {} of its run)\n", checkpoint.string(), read_manifest(checkpoint).step);
  for (const std::string& change : changes) print_out("  {}\n", change);
  const std::optional<TokenizerRecord> before = read_tokenizer(checkpoint);
  if (before && tokenizer_ && before->sha256 != tokenizer_->sha256)
    print_err("warning: the data have another tokenizer than {}\n", checkpoint.string());
}

void Checkpointing::set_later_aside(int64_t step) const {
  for (const std::string& name : set_aside_later_checkpoints(folder_.out(), step))
    print_out("later checkpoint set aside: {}\n", name);
}

bool Checkpointing::is_due(int64_t step) const {
  const int64_t every = context_.config.checkpoint.every_steps;
  return save_due_ || (every > 0 && step % every == 0);
}

void Checkpointing::after_step(const RunProgress& progress, bool skipped, bool last) {
  save_due_ = is_due(progress.step);
  last_skipped_ = skipped;
  // After a skipped step the weights may be what makes it fail: such a checkpoint must not push out a good one.
  if (!last && save_due_ && !skipped) save(progress);
}

void Checkpointing::save(const RunProgress& progress) {
  if (saved_step_ == progress.step) return;
  const auto start = Clock::now();
  context_.world.activity().set_phase("checkpoint");
  reporter_.sync_metrics();
  folder_.move_to(broadcast_text(context_.all(), folder_.place_to_save().string(), 0));
  save_state(context_.config, step_, progress, context_.groups, context_.world, folder_.out(), tokenizer_);
  saved_step_ = progress.step;
  save_due_ = false;
  if (context_.leads())
    print_out("checkpoint of step {} saved in {}\n", progress.step, format_duration(seconds_since(start)));
  // After a skipped step the weights may be what makes it fail: no good checkpoint is given up for them.
  if (!last_skipped_ && progress.skipped_in_a_row == 0) retain();
}

// A folder that cannot be written to any more is no reason to lose the state, but one to end with an error.
void Checkpointing::save_at_end(const RunProgress& progress) {
  for (bool saved = false; !saved;) {
    try {
      save(progress);
      saved = true;
    } catch (const PeerGone&) {
      throw;
    } catch (const Error& error) {
      if (!broadcast_text(context_.all(), folder_.has_other_place() ? "yes" : "", 0).empty()) continue;
      if (folder_.fault().empty()) throw;
      throw Error(ExitCode::checkpoint, "{}; the state after step {} cannot be saved: {}", folder_.fault(),
                  progress.step, error.what());
    }
  }
  folder_.record([&] { reporter_.write_page(); });
  if (broadcast_text(context_.all(), folder_.fault(), 0).empty()) return;
  throw Error(ExitCode::checkpoint, context_.leads() ? lost_folder(progress.step) : std::string());
}

std::string Checkpointing::lost_folder(int64_t step) const {
  const fs::path checkpoints = folder_.out() / "checkpoints";
  return fmt::format("{}; the state after step {} is saved in {}", folder_.fault(), step,
                     FolderLock::is_out_of_sight(checkpoints) ? "that folder's checkpoints" : checkpoints.string());
}

void Checkpointing::retain() const {
  if (!context_.leads()) return;
  const CheckpointConfig& kept = context_.config.checkpoint;
  const std::string warning = apply_retention(folder_.out(), kept.keep_last, kept.keep_every);
  if (!warning.empty()) print_err("warning: {}\n", warning);
}

}  // namespace gptrain
