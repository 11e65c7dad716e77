#include "train/loop.h"

#include <cstdint>
#include <deque>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/output.h"
#include "base/units.h"
#include "comm/agree.h"
#include "optim/learning_rate.h"
#include "train/loop_parts.h"
#include "train/replicas.h"
#include "train/routing.h"

namespace gptrain::inline train {
namespace {

// Every rank of a world has one object and makes the same calls.
class TrainingLoop {
 public:
  // Makes the parts and sets the step's first state.
  TrainingLoop(const RunContext& context, const TrainOptions& options, const StopSignals& signals,
               std::shared_ptr<const StepDesign> design);

  ExitCode run();

 private:
  ExitCode train();
  ExitCode find_nothing_to_do();
  void run_steps();
  bool go_back();
  bool wants_to_stop() const { return stop_.is_wanted() || checkpoints_.has_failed(); }
  bool is_stopping();
  void begin_step(Prefetcher& batches);
  void end_step(const Prefetcher& batches);
  void end_void(const Prefetcher& batches);
  [[noreturn]] void save_and_end(const Error& error);
  void count(const StepResult& result);
  void warn_of_no_checkpoints(double step_seconds);
  void do_what_is_due();
  bool validate();
  bool needs_result(int64_t step) const;
  bool is_last() const { return progress_.step == start_.last_step; }
  int64_t begun_steps() const { return progress_.step + step_.begun(); }
  // Whether the state after the steps that have begun can be saved.
  bool can_end() const { return step_.design().are_equal_after(begun_steps()); }
  ExitCode stopped() const;

  const RunContext& context_;
  const int64_t profile_step_;  // 0: none
  StepProfiler* const profiler_;
  LoopParts parts_;
  const Start& start_;
  FolderWatch& folder_;
  StopRequest& stop_;
  RunData& data_;
  TrainingStep& step_;
  Reporter& reporter_;
  Checkpointing& checkpoints_;
  LossWatch& losses_;
  Samples& samples_;
  Validation& validation_;
  RunProgress progress_;
  std::optional<LossScale> loss_scale_;  // scale after the last step; none: no loss scaling
  int64_t first_step_;                   // steps done before this call
  std::deque<BegunStep> begun_;          // the oldest first
};

TrainingLoop::TrainingLoop(const RunContext& context, const TrainOptions& options, const StopSignals& signals,
                           std::shared_ptr<const StepDesign> design)
    : context_(context),
      profile_step_(options.profile_step.value_or(0)),
      profiler_(context.profiler),
      parts_(context, options, signals, std::move(design)),
      start_(parts_.start),
      folder_(parts_.folder),
      stop_(parts_.stop),
      data_(parts_.data),
      step_(*parts_.step),
      reporter_(parts_.reporter),
      checkpoints_(parts_.checkpoints),
      losses_(parts_.losses),
      samples_(parts_.samples),
      validation_(*parts_.validation) {
  choose_algorithms(step_, start_.checkpoint, context.all());
  reporter_.warn();
  progress_ = checkpoints_.start(start_.checkpoint, start_.weights);
  for (const std::string& change : data_.changes)
    if (context.leads()) print_out("  {}\n", change);
  loss_scale_ = step_.loss_scale();
  losses_.begin(progress_);
  reporter_.collect_memory();
  first_step_ = progress_.step;
  agree_on(context.all(), context.world, [&] {
    if (!context.leads()) return;
    start_.lock->keep();
    // A loaded checkpoint has the vocabulary's rows already, so the tokenizer's warning is of no use.
    const bool chosen = start_.checkpoint || start_.weights;
    for (const std::string& warning : {start_.warning, chosen ? std::string() : data_.tokenizer.warning,
                                       step_.design().choices.warning, data_.warning})
      if (!warning.empty()) print_err("warning: {}\n", warning);
    if (start_.checkpoint) checkpoints_.set_later_aside(progress_.step);
    reporter_.open(start_.checkpoint ? progress_.step : -1);
  });
}

ExitCode TrainingLoop::run() {
  try {
    return train();
  } catch (const PeerGone&) {
    checkpoints_.end_last_save();
    throw;
  } catch (const Error& error) {
    // A call that has done no step has nothing to save.
    const bool is_void = error.code() == ExitCode::data || step_.expert_overflow().any();
    if (is_void && progress_.step > first_step_ && step_.design().are_equal_after(progress_.step)) save_and_end(error);
    checkpoints_.end_last_save();
    throw;
  } catch (...) {
    checkpoints_.end_last_save();
    throw;
  }
}

// Data that cannot be read, and experts without room, leave weights and moments as they were after the last step.
void TrainingLoop::save_and_end(const Error& error) {
  checkpoints_.save_at_end(progress_);
  if (!context_.leads()) throw Error(error.code(), std::string());
  throw Error(error.code(), "{}\nthe state after step {} is saved; go on with --resume latest", error.lines(),
              progress_.step);
}

ExitCode TrainingLoop::train() {
  if (progress_.step >= context_.config.run.steps) return find_nothing_to_do();
  reporter_.announce();
  validation_.warn_of_repeats();
  if (validation_.is_due(progress_.step) && !reporter_.has_validation(progress_.step)) validation_.run(progress_.step);
  run_steps();
  if (progress_.step < start_.last_step) {
    checkpoints_.save_at_end(progress_);
    return stopped();
  }
  const bool validated = validate();
  checkpoints_.save_at_end(progress_);
  losses_.end_if_lost(progress_);
  if (!validated) return stopped();
  if (context_.leads()) {
    print_out("done: step {}; metrics, checkpoints and report.html are in {}\n", progress_.step,
              folder_.out().string());
  }
  return ExitCode::finished;
}

void TrainingLoop::run_steps() {
  do {
    Prefetcher batches = read_ahead(context_.config, data_.train, progress_.samples, context_.data_rank(),
                                    prefetch_ring(context_.config, context_.backend.target()), parts_.rings->data());
    while (begun_steps() < start_.last_step && !(is_stopping() && can_end()) && !losses_.has_spiked()) {
      begin_step(batches);
      const int64_t ahead = needs_result(begun_steps()) ? 0 : step_.most_ahead();
      while (step_.begun() > ahead) end_step(batches);
    }
    while (step_.begun() > 0) end_step(batches);
  } while (go_back());
}

// Goes back to an earlier checkpoint if the loss has spiked. Returns true if it has.
bool TrainingLoop::go_back() {
  if (!losses_.has_spiked()) return false;
  progress_ = losses_.go_back(progress_);
  validation_.forget();
  return true;
}

void TrainingLoop::begin_step(Prefetcher& batches) {
  const int64_t step = begun_steps() + 1;
  const double waited_before = batches.waited_seconds();
  const double lr = learning_rate(context_.config.lr_course(), step - 1);
  StepProfiler* const profiler = step == profile_step_ ? profiler_ : nullptr;
  if (profiler != nullptr) profiler->start();
  context_.world.activity().set_step(step);
  context_.world.activity().set_phase("step");
  const int64_t batch = context_.config.batch.global;
  // The number is the same on every rank, and known before the batch is read.
  int64_t targets = 0;
  try {
    targets = data_.train.count_targets(progress_.samples + step_.begun() * batch, batch);
  } catch (const Error&) {
    while (step_.begun() > 0) end_step(batches);
    throw;
  }
  const auto ask = [this, &batches] { return wants_to_stop() || batches.is_void(); };
  step_.use_program(step_.design().program_after(step - 1));
  if (step_.design().forgets_errors_after(step - 1)) step_.forget_errors();
  step_.begin(lr, batches, profiler, ask, targets);
  begun_.push_back({lr, batches.waited_seconds() - waited_before});
}

// Ends the oldest step that has begun, and does the work due after it.
void TrainingLoop::end_step(const Prefetcher& batches) {
  const StepResult result = step_.end();
  if (result.is_void) end_void(batches);
  const BegunStep begun = begun_.front();
  begun_.pop_front();
  stop_.note(result.stop);
  count(result);
  losses_.look(progress_, result);
  if (profiler_ != nullptr) profiler_->set_saving(true);
  checkpoints_.step_is_over(progress_, losses_.is_doubtful(), is_last());
  if (profiler_ != nullptr) profiler_->set_saving(false);
  std::optional<StepProfile> profile;
  if (profiler_ != nullptr && progress_.step == profile_step_)
    profile = profiler_->finish(progress_.step, begun.data_seconds, parts_.limits, step_.design().stages);
  reporter_.report_step(progress_, result, begun);
  folder_.look();
  if (context_.leads() && folder_.fault().empty()) folder_.record([this] { reporter_.look_for_files(); });
  reporter_.warn();
  warn_of_no_checkpoints(result.seconds);
  if (profile) reporter_.report_profile(*profile);
  do_what_is_due();
  flush_lines();
}

// Ends the steps that have begun after some rank could not read its data, or had no room for rows of experts. None of
// these steps has changed the state.
void TrainingLoop::end_void(const Prefetcher& batches) {
  while (step_.begun() > 0) step_.end();
  if (loss_scale_) step_.set_loss_scale(*loss_scale_);
  agree_on(context_.all(), context_.world, [&] {
    if (batches.is_void()) throw Error(ExitCode::data, "step {}: {}", progress_.step + 1, batches.fault());
    refuse_overflow(step_, fmt::format("step {}", progress_.step + 1));
  });
}

// Call after a step, with its time.
void TrainingLoop::warn_of_no_checkpoints(double step_seconds) {
  constexpr double some_minutes = 300;
  constexpr int64_t first_steps = 3;
  const CheckpointConfig& checkpoint = context_.config.checkpoint;
  if (!context_.leads() || checkpoint.every_steps > 0 || checkpoint.every_seconds > 0) return;
  if (progress_.step != first_step_ + first_steps) return;
  const double seconds = step_seconds * static_cast<double>(start_.last_step - progress_.step);
  if (seconds < some_minutes) return;
  print_err(
      "warning: no checkpoint is saved for about {}, until the end: checkpoint.every_steps and every_seconds are 0\n",
      format_duration(seconds));
}

void TrainingLoop::count(const StepResult& result) {
  // A step that only lowers the loss scale leaves the state as it was, and the loss known for it.
  if (!result.lowered_loss_scale())
    progress_.loss = result.skipped ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(result.loss);
  loss_scale_ = step_.loss_scale();
  progress_.step += 1;
  progress_.samples += context_.config.batch.global;
  progress_.updates = result.updates;
  progress_.skipped += result.skipped ? 1 : 0;
  // A step that only lowers the loss scale neither counts as a failure nor makes up for one.
  if (!result.lowered_loss_scale()) progress_.skipped_in_a_row = result.skipped ? progress_.skipped_in_a_row + 1 : 0;
}

void TrainingLoop::do_what_is_due() {
  losses_.end_if_diverged(progress_);
  const int64_t compare_every = context_.config.comm.compare_every_steps;
  if (compare_every > 0 && progress_.step % compare_every == 0) compare_replicas(context_, step_, progress_.step);
  if (!is_last() && validation_.is_due(progress_.step)) validate();
  if (!is_last()) checkpoints_.save_if_due(progress_);
  if (samples_.is_due(progress_.step)) samples_.run(progress_);
}

// Returns false if a stop left the validation out.
bool TrainingLoop::validate() {
  const bool validated = validation_.run(progress_.step);
  if (validated) losses_.note_validation(progress_, validation_.is_lost());
  return validated;
}

// Returns true if the work after the step needs its result, or a device without other work.
bool TrainingLoop::needs_result(int64_t step) const {
  const int64_t compare_every = context_.config.comm.compare_every_steps;
  return step == start_.last_step || checkpoints_.is_due(step) || validation_.is_due(step) || samples_.is_due(step) ||
         (compare_every > 0 && step % compare_every == 0) || step == profile_step_ || step + 1 == profile_step_;
}

// Returns true if the run must stop; the same on all ranks. A rank that is alone need not wait for the next step to
// agree.
bool TrainingLoop::is_stopping() {
  if (context_.all() == nullptr) return wants_to_stop();
  if (!stop_.is_agreed() && begun_steps() == first_step_) stop_.agree(step_);
  return stop_.is_agreed();
}

// Finishes a run that a crash or a stop ended after its last step.
ExitCode TrainingLoop::find_nothing_to_do() {
  const bool validated = reporter_.has_validation(progress_.step) || validate();
  checkpoints_.retain();
  reporter_.write_page();
  if (!validated) return stopped();
  losses_.end_if_lost(progress_);
  const int64_t steps = context_.config.run.steps;
  if (context_.leads() && progress_.step > steps) {
    print_out("nothing to do: run.steps = {} is less than the checkpoint's step, {} (raise run.steps to train on)\n",
              steps, progress_.step);
  } else if (context_.leads()) {
    print_out("nothing to do: step {} of {} is done (raise run.steps to train on)\n", progress_.step, steps);
  }
  return ExitCode::finished;
}

ExitCode TrainingLoop::stopped() const {
  if (!context_.leads()) return ExitCode::requeue;
  if (profile_step_ > progress_.step) print_out("step {} was not reached, so there is no profile\n", profile_step_);
  print_out("stopped by {} after step {}; the state is saved, go on with --resume latest\n", stop_.cause(),
            progress_.step);
  return ExitCode::requeue;
}

}  // namespace

ExitCode run_training_loop(const RunContext& context, const TrainOptions& options, const StopSignals& signals,
                           std::shared_ptr<const StepDesign> design) {
  return TrainingLoop(context, options, signals, std::move(design)).run();
}

}  // namespace gptrain::train
