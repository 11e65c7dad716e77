#include "train/run.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/output_file.h"
#include "base/progress.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "config/load.h"
#include "data/dataset.h"
#include "optim/learning_rate.h"
#include "report/dry_run.h"
#include "report/run_page.h"
#include "report/step_profile.h"
#include "train/machine_limits.h"
#include "train/metrics.h"
#include "train/run_state.h"
#include "train/signals.h"
#include "train/step_profiler.h"
#include "train/training_step.h"

namespace gptrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Keeps a second process out of a run's folder for as long as it lives.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& out) {
    const fs::path path = out / ".lock";
    descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0)
      throw Error(ExitCode::usage, "run.out: cannot write {}: {}", path.string(), std::strerror(errno));
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      close(descriptor_);
      throw Error(ExitCode::usage, "run.out = {}: another gptrain is running in this folder", out.string());
    }
  }
  ~FolderLock() { close(descriptor_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

void create_out(const fs::path& out) {
  std::error_code error;
  fs::create_directories(out, error);
  if (error) throw Error(ExitCode::usage, "run.out: cannot create {}: {}", out.string(), error.message());
}

void write_file(const fs::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

// Micro-batches of a dataset, read ahead.
class PrefetchedBatches : public MicroBatchSource {
 public:
  PrefetchedBatches(const RunConfig& config, const Dataset& dataset, int64_t first_sample, std::byte* ring)
      : prefetcher_(dataset, first_sample, config.batch.micro, config.model.sequence_length, ring, prefetch_depth) {}

  const MicroBatch& next() override { return prefetcher_.next(); }
  double waited_seconds() const { return prefetcher_.waited_seconds(); }

 private:
  Prefetcher prefetcher_;
};

// Only the first `samples` samples of a source count, so that the result does not depend on the micro-batch: the
// targets of the others are marked as not counted.
class FirstSamples : public MicroBatchSource {
 public:
  FirstSamples(MicroBatchSource& source, int64_t samples, int64_t batch, int64_t sequence_length)
      : source_(source), left_(samples), batch_(batch), sequence_length_(sequence_length) {}

  const MicroBatch& next() override {
    const MicroBatch& batch = source_.next();
    const int64_t counted = std::min(left_, batch_);
    std::fill(batch.targets + counted * sequence_length_, batch.targets + batch_ * sequence_length_, -1);
    left_ -= counted;
    return batch;
  }

 private:
  MicroBatchSource& source_;
  int64_t left_, batch_, sequence_length_;
};

std::optional<Dataset> open_validation_data(const RunConfig& config) {
  if (config.data.validation.empty()) return std::nullopt;
  return Dataset(config.data.validation, config.model.sequence_length, config.model.vocab_size, config.run.seed, false);
}

// The last step that this call runs. Refuses to profile a step that it does not run.
int64_t last_step_of_call(const RunConfig& config, const TrainOptions& options,
                          const std::optional<fs::path>& checkpoint) {
  const int64_t done = checkpoint ? read_manifest(*checkpoint).step : 0;
  const int64_t left = std::max<int64_t>(config.run.steps - done, 0);
  const int64_t last = done + std::min(options.steps.value_or(left), left);
  if (options.profile_step && (*options.profile_step <= done || *options.profile_step > last)) {
    throw Error(ExitCode::usage, "--profile-step {}: {}", *options.profile_step,
                last > done ? fmt::format("this call runs steps {} to {} (choose one of them)", done + 1, last)
                            : fmt::format("no step is left to run: step {} of {} is done", done, config.run.steps));
  }
  return last;
}

class Run {
 public:
  // `profiler`, where a step is to be profiled, is what stands between the run and the backend.
  Run(const RunConfig& config, const TrainOptions& options, const StopSignals& signals, Backend& backend,
      StepProfiler* profiler, const StepPlan& plan);

  ExitCode loop();

 private:
  void start_or_resume();
  ExitCode stopped() const;
  void one_step(PrefetchedBatches& batches);
  void report(const StepResult& result, double lr, double seconds, double data_seconds);
  void write_profile(const StepProfile& profile) const;
  bool validation_due() const;
  bool validation_recorded() const;
  void validate();
  void save();
  void retain();
  void finish();

  const RunConfig& config_;
  const fs::path out_;
  const StopSignals& signals_;
  FolderLock lock_;
  Backend& backend_;
  StepProfiler* const profiler_;  // not null where a step is profiled
  const int64_t profile_step_;
  const std::optional<fs::path> checkpoint_;  // that this run goes on from
  const int64_t last_step_;                   // where this process stops
  Dataset train_data_;
  std::optional<Dataset> validation_data_;
  const MachineLimits limits_;  // measured once all input is found sound, and before the arenas take their memory
  std::unique_ptr<std::byte[]> ring_;
  TrainingStep step_;
  RunProgress progress_;
  std::optional<MetricsWriter> metrics_;
  int64_t saved_step_ = -1;
  bool save_due_ = false;
  int64_t validated_step_ = -1;
  double model_flops_per_step_;
  double average_step_seconds_ = 0;
};

Run::Run(const RunConfig& config, const TrainOptions& options, const StopSignals& signals, Backend& backend,
         StepProfiler* profiler, const StepPlan& plan)
    : config_(config),
      out_(config.run.out),
      signals_(signals),
      lock_((create_out(out_), out_)),
      backend_(backend),
      profiler_(profiler),
      profile_step_(options.profile_step.value_or(0)),
      checkpoint_(checkpoint_to_start_from(config, options.resume)),
      last_step_(last_step_of_call(config, options, checkpoint_)),
      train_data_(config.data.train, config.model.sequence_length, config.model.vocab_size, config.run.seed, true),
      validation_data_(open_validation_data(config)),
      limits_{.compute = config.precision.compute,
              .matrix_flops = measure_matrix_rate(backend, config.precision.compute),
              .bytes_per_second = profiler != nullptr ? measure_copy_rate(backend) : 0},
      ring_(std::make_unique<std::byte[]>(static_cast<size_t>(all_rings_bytes(config)))),
      step_(config, plan, backend),
      model_flops_per_step_(static_cast<double>(plan.total().model_flops)) {
  start_or_resume();
  write_file(out_ / "config.json", show_config(config));
  write_file(out_ / "run.json", memory_json(config, step_.spec(), step_.taken()));
}

void Run::start_or_resume() {
  if (checkpoint_) {
    progress_ = load_state(*checkpoint_, step_);
    saved_step_ = progress_.step;
    fmt::print("resumed from {} (step {})\n", checkpoint_->string(), progress_.step);
    for (const std::string& name : set_aside_later_checkpoints(out_, progress_.step)) {
      fmt::print("later checkpoint set aside: {}\n", name);
    }
  } else {
    fmt::print("starting from scratch (seed {})\n", config_.run.seed);
    std::fflush(stdout);
    Progress bar("initial weights", step_.spec().parameters());
    step_.initialize([&](int64_t drawn) { bar.update(drawn); });
    bar.finish();
  }
  metrics_.emplace(out_, checkpoint_ ? progress_.step : -1);
}

ExitCode Run::loop() {
  if (progress_.step >= config_.run.steps) {
    // A crash or a stop after the last step may have kept the rest of the end from happening.
    if (!validation_recorded()) validate();
    retain();
    finish();
    fmt::print("nothing to do: step {} of {} is done\n", progress_.step, config_.run.steps);
    return ExitCode::finished;
  }
  fmt::print("this machine: {} threads, {:.0f} GFLOP/s in {} matrix products\n", backend_.target().num_threads,
             limits_.matrix_flops / 1e9, dtype_name(limits_.compute));
  std::fflush(stdout);
  if (validation_due() && !validation_recorded()) validate();
  {
    PrefetchedBatches batches(config_, train_data_, progress_.samples, ring_.get());
    while (progress_.step < last_step_ && !signals_.requested()) {
      one_step(batches);
      std::fflush(stdout);
    }
  }
  if (progress_.step < last_step_) {
    save();
    finish();
    return stopped();
  }
  validate();
  save();
  finish();
  if (progress_.skipped_in_a_row > 0) {
    throw Error(
        ExitCode::diverged,
        "training diverged: loss or gradients were not finite in the last {}; earlier checkpoints in {} are kept",
        format_counted(progress_.skipped_in_a_row, "step"), (out_ / "checkpoints").string());
  }
  // The last validation was stopped; whoever resumes makes up for it.
  if (validation_data_ && validated_step_ != progress_.step) return stopped();
  fmt::print("done: step {}; metrics, checkpoints and report.html are in {}\n", progress_.step, out_.string());
  return ExitCode::finished;
}

ExitCode Run::stopped() const {
  if (profile_step_ > progress_.step) fmt::print("step {} was not reached, so there is no profile\n", profile_step_);
  fmt::print("stopped by {} after step {}; the state is saved, go on with --resume latest\n", signals_.name(),
             progress_.step);
  return ExitCode::requeue;
}

void Run::one_step(PrefetchedBatches& batches) {
  const auto start = Clock::now();
  const double waited_before = batches.waited_seconds();
  const double lr = learning_rate(config_, progress_.step);
  StepProfiler* const profiler = progress_.step + 1 == profile_step_ ? profiler_ : nullptr;
  if (profiler != nullptr) profiler->start();
  const StepResult result = step_.run(lr, batches, profiler);
  progress_.step += 1;
  std::optional<StepProfile> profile;
  if (profiler != nullptr)
    profile = profiler->finish(progress_.step, batches.waited_seconds() - waited_before, limits_);
  progress_.samples += config_.batch.global;
  progress_.updates = result.updates;
  progress_.skipped_in_a_row = result.skipped ? progress_.skipped_in_a_row + 1 : 0;
  progress_.skipped += result.skipped ? 1 : 0;
  report(result, lr, seconds_since(start), batches.waited_seconds() - waited_before);
  if (profile) write_profile(*profile);
  if (progress_.skipped_in_a_row > config_.run.max_skipped_steps) {
    finish();
    throw Error(ExitCode::diverged,
                "training diverged: loss or gradients were not finite for {} steps in a row (run.max_skipped_steps = "
                "{}); the last "
                "checkpoint in {} is untouched",
                progress_.skipped_in_a_row, config_.run.max_skipped_steps, (out_ / "checkpoints").string());
  }
  const bool last = progress_.step == last_step_;
  if (!last && validation_due()) validate();
  const int64_t save_every = config_.checkpoint.every_steps;
  save_due_ = save_due_ || (save_every > 0 && progress_.step % save_every == 0);
  // After a skipped step the weights may be what makes it fail: such a checkpoint must not push out a good one.
  if (!last && save_due_ && !result.skipped) save();
}

bool Run::validation_due() const {
  const int64_t every = config_.run.validate_every_steps;
  return every > 0 && progress_.step > 0 && progress_.step % every == 0;
}

// A stop during a validation leaves it out; whoever resumes that step makes up for it.
bool Run::validation_recorded() const {
  const RunHistory history = read_run_history(out_ / "metrics.jsonl");
  return std::any_of(history.validations.begin(), history.validations.end(),
                     [&](const RunHistory::Validation& validation) { return validation.step == progress_.step; });
}

void Run::report(const StepResult& result, double lr, double seconds, double data_seconds) {
  // Weighs the last twenty steps or so; the first step, which sets up primitives, only until the next.
  average_step_seconds_ =
      average_step_seconds_ == 0 || progress_.step <= 2 ? seconds : 0.95 * average_step_seconds_ + 0.05 * seconds;
  const int64_t every = config_.log.every_steps;
  if (progress_.step % every != 0 && progress_.step != last_step_ && !result.skipped) return;
  const int64_t tokens_per_step = step_.counted_tokens();
  const StepMetrics metrics{.step = progress_.step,
                            .loss = result.loss,
                            .grad_norm = result.grad_norm,
                            .lr = lr,
                            .tokens = progress_.samples * config_.model.sequence_length,
                            .samples = progress_.samples,
                            .step_seconds = seconds,
                            .data_seconds = data_seconds,
                            .tokens_per_second = static_cast<double>(tokens_per_step) / seconds,
                            .mfu = model_flops_per_step_ / seconds / limits_.matrix_flops,
                            .peak_bytes = step_.taken().total(),
                            .skipped = result.skipped};
  metrics_->write_step(metrics);
  const double eta = average_step_seconds_ * static_cast<double>(config_.run.steps - progress_.step);
  fmt::print("{}\n", format_step_line(metrics, config_.run.steps, backend_.target().memory_bytes, eta));
}

void Run::write_profile(const StepProfile& profile) const {
  const fs::path trace = out_ / fmt::format("trace-step{}.json", profile.step);
  write_file(trace, step_profile_trace(profile));
  fmt::print("{}trace: {}\n", step_profile_table(profile), trace.string());
}

void Run::validate() {
  if (!validation_data_ || validated_step_ == progress_.step) return;
  const int64_t samples = config_.run.validation_samples;
  const int64_t micro = config_.batch.micro;
  PrefetchedBatches batches(config_, *validation_data_, 0, ring_.get() + prefetch_ring_bytes(config_));
  FirstSamples counted(batches, samples, micro, config_.model.sequence_length);
  double sum = 0;
  for (int64_t first = 0; first < samples; first += micro) {
    // Nothing is lost: the run that is resumed validates this step.
    if (signals_.requested()) return;
    sum += step_.evaluate(1, counted);
  }
  const double loss = sum / static_cast<double>(samples * config_.model.sequence_length);
  metrics_->write_validation(progress_.step, loss);
  fmt::print("validation after step {}: loss {:.4f} over {}\n", progress_.step,
             std::isnan(loss) ? std::abs(loss) : loss, format_counted(samples, "sequence"));
  validated_step_ = progress_.step;
}

void Run::save() {
  if (saved_step_ == progress_.step) return;
  const auto start = Clock::now();
  metrics_->sync();
  save_state(config_, step_, progress_);
  saved_step_ = progress_.step;
  save_due_ = false;
  fmt::print("checkpoint of step {} saved in {}\n", progress_.step, format_duration(seconds_since(start)));
  // After a skipped step the weights may be what makes it fail: no good checkpoint is given up for them.
  if (progress_.skipped_in_a_row == 0) retain();
}

void Run::retain() {
  const std::string warning = apply_retention(out_, config_.checkpoint.keep_last, config_.checkpoint.keep_every);
  if (!warning.empty()) fmt::print(stderr, "warning: {}\n", warning);
}

void Run::finish() { write_run_page(out_, fmt::format("gptrain: {}", out_.string()), show_config(config_)); }

}  // namespace

ExitCode train(const RunConfig& config, const TrainOptions& options) {
  // First of all: a request to stop that comes while the run is being set up is honoured too.
  const StopSignals signals;
  const auto device = make_cpu_backend(static_cast<int>(config.run.threads), config.run.thread_independent);
  const StepPlan plan = plan_step(config, device->target());
  const std::string shortage = memory_shortage(config, plan.memory, device->target());
  if (!shortage.empty()) throw Error(ExitCode::device, "{}", shortage);
  std::optional<StepProfiler> profiler;
  if (options.profile_step) profiler.emplace(*device);
  Backend& backend = profiler ? profiler->backend() : *device;
  return Run(config, options, signals, backend, profiler ? &*profiler : nullptr, plan).loop();
}

}  // namespace gptrain
