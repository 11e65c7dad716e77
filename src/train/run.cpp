#include "train/run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fmt/format.h>
#include <sstream>
#include <thread>

#include "base/output.h"
#include "base/progress.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "comm/agree.h"
#include "comm/process_world.h"
#include "comm/texts.h"
#include "config/load.h"
#include "data/dataset.h"
#include "optim/learning_rate.h"
#include "report/dry_run.h"
#include "report/formulas.h"
#include "report/run_page.h"
#include "report/step_profile.h"
#include "train/batches.h"
#include "train/device.h"
#include "train/folder.h"
#include "train/machine_limits.h"
#include "train/metrics.h"
#include "train/plan_step.h"
#include "train/run_state.h"
#include "train/set_up.h"
#include "train/shortage.h"
#include "train/signals.h"
#include "train/step_profiler.h"
#include "train/together.h"
#include "train/training_step.h"

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

// A step that has begun: what its result is reported with.
struct BegunStep {
  double lr;
  double data_seconds;  // waiting for data
};

class Run {
 public:
  // `profiler`, where a step is to be profiled, is what stands between the run and the backend.
  Run(const RunConfig& config, const TrainOptions& options, const StopSignals& signals, Backend& backend,
      StepProfiler* profiler, const StepPlan& plan, RankGroups& groups, World& world);

  ExitCode loop();

 private:
  void choose_algorithms();
  void start_or_resume();
  void prepare_folder();
  void print_machine() const;
  void compare_replicas();
  void warn_of_spread_tensor_groups() const;
  void warn_of_repeated_validation() const;
  void print_warnings();
  bool stopping();
  bool wants_to_stop() const { return signals_.requested() || !folder_.fault().empty(); }
  ExitCode stopped() const;
  Error diverged(const std::string& when) const;
  void begin_step(PrefetchedBatches& batches);
  void end_step();
  void after_step(const StepResult& result);
  bool needs_result(int64_t step) const;
  int64_t begun_steps() const { return progress_.step + step_->begun(); }
  void report(const StepResult& result, double lr, double data_seconds);
  void write_profile(const StepProfile& profile) const;
  bool validation_due() const;
  bool validation_recorded() const;
  bool validate();
  void save();
  void save_at_end();
  void retain();
  void finish();

  const RunConfig& config_;
  fs::path out_;
  const StopSignals& signals_;
  Backend& backend_;
  RankGroups& groups_;
  World& world_;
  const bool leads_;  // rank 0 prints and writes; all compute
  const DataPlace place_;
  const Start start_;
  FolderWatch folder_;
  StepProfiler* const profiler_;  // not null where a step is profiled
  const int64_t profile_step_;
  const RunData data_;
  const MachineLimits limits_;  // measured once all input is found sound, and before the arenas take their memory
  std::unique_ptr<DeviceMemory> rings_;  // before the step, which may be copying from it until its end
  const std::unique_ptr<TrainingStep> step_;
  std::deque<BegunStep> begun_;
  RunProgress progress_;
  std::optional<MetricsWriter> metrics_;
  int64_t saved_step_ = -1;
  bool last_skipped_ = false;
  bool save_due_ = false;
  int64_t validated_step_ = -1;
  double model_flops_per_step_;
  double total_matrix_flops_ = 0;  // of all ranks
  bool stop_agreed_ = false;
  int64_t started_at_step_ = 0;
  double average_step_seconds_ = 0;
};

Run::Run(const RunConfig& config, const TrainOptions& options, const StopSignals& signals, Backend& backend,
         StepProfiler* profiler, const StepPlan& plan, RankGroups& groups, World& world)
    : config_(config),
      out_(config.run.out),
      signals_(signals),
      backend_(backend),
      groups_(groups),
      world_(world),
      leads_(groups.rank() == 0),
      place_{groups.data_rank(), groups.data_size()},
      start_(choose_start(config, options, checkpoint_bytes(plan.design->spec, config.precision),
                          groups.group(GroupKind::world), world)),
      folder_(start_.lock.get()),
      profiler_(profiler),
      profile_step_(options.profile_step.value_or(0)),
      data_(open_data(config, groups.group(GroupKind::world), world)),
      limits_{.compute = config.precision.compute,
              .matrix_flops = measure_matrix_rate(backend, config.precision.compute),
              .bytes_per_second = profiler != nullptr ? measure_copy_rate(backend) : 0},
      step_(make_step(plan.design, backend, groups, world)),
      model_flops_per_step_(static_cast<double>(model_flops_formula(config.model, config.batch.global))) {
  rings_ = step_->allocate_host(all_rings_bytes(config, backend.target()));
  total_matrix_flops_ = limits_.matrix_flops;
  if (Communicator* const all = groups_.group(GroupKind::world); all != nullptr)
    all->all_reduce(&total_matrix_flops_, 1, DType::f64, ReduceOp::sum);
  choose_algorithms();
  start_or_resume();
  agree_on(groups.group(GroupKind::world), world, [&] {
    if (leads_) prepare_folder();
  });
}

// The checkpoint's, so that the run goes on with the same bits; what it does not name is chosen now, by rank 0 for all.
void Run::choose_algorithms() {
  if (backend_.algorithms().empty()) return;
  if (start_.checkpoint) {
    const std::string saved = read_manifest(*start_.checkpoint).algorithms;
    if (!saved.empty()) backend_.use_algorithms(saved);
  }
  step_->choose_algorithms();
  backend_.use_algorithms(broadcast_text(groups_.group(GroupKind::world), backend_.algorithms(), 0));
  print_warnings();
}

void Run::print_warnings() {
  std::istringstream warnings(backend_.take_warnings());
  for (std::string line; leads_ && std::getline(warnings, line);) print_err("warning: {}\n", line);
}

void Run::start_or_resume() {
  if (start_.checkpoint) {
    progress_ = load_state(*start_.checkpoint, *step_, groups_, world_);
    saved_step_ = progress_.step;
    if (leads_) print_out("resumed from {} (step {})\n", start_.checkpoint->string(), progress_.step);
  } else if (leads_) {
    print_out("starting from scratch (seed {})\n", config_.run.seed);
    flush_lines();
    Progress bar("initial weights", elements_of(step_->state()));
    step_->initialize([&](int64_t drawn) { bar.update(drawn); });
    bar.finish();
  } else {
    step_->initialize();
  }
  started_at_step_ = progress_.step;
}

// Makes the run's folder fit the step that this call starts from.
void Run::prepare_folder() {
  start_.lock->keep();
  if (!start_.warning.empty()) print_err("warning: {}\n", start_.warning);
  if (start_.checkpoint) {
    for (const std::string& name : set_aside_later_checkpoints(out_, progress_.step))
      print_out("later checkpoint set aside: {}\n", name);
  }
  metrics_.emplace(out_, start_.checkpoint ? progress_.step : -1);
  if (!metrics_->warning().empty()) print_err("warning: {}\n", metrics_->warning());
  write_whole_file(out_ / "config.json", show_config(config_, ConfigText::for_any_ranks));
  write_whole_file(out_ / "run.json", memory_json(config_, step_->spec(), step_->taken()));
}

ExitCode Run::loop() {
  if (progress_.step >= config_.run.steps) {
    // A crash or a stop after the last step may have kept the rest of the end from happening.
    const bool validated = validation_recorded() || validate();
    retain();
    finish();
    if (!validated) return stopped();
    if (leads_ && progress_.step > config_.run.steps) {
      print_out("nothing to do: run.steps = {} is less than the checkpoint's step, {}\n", config_.run.steps,
                progress_.step);
    } else if (leads_) {
      print_out("nothing to do: step {} of {} is done\n", progress_.step, config_.run.steps);
    }
    return ExitCode::finished;
  }
  if (leads_) {
    print_machine();
    warn_of_spread_tensor_groups();
    warn_of_repeated_validation();
  }
  if (validation_due() && !validation_recorded()) validate();
  {
    PrefetchedBatches batches(config_, data_.train, progress_.samples, place_,
                              prefetch_ring(config_, backend_.target()), rings_->data());
    while (begun_steps() < start_.last_step && !stopping()) {
      begin_step(batches);
      const int64_t ahead = needs_result(begun_steps()) ? 0 : step_->most_ahead();
      while (step_->begun() > ahead) end_step();
    }
    while (step_->begun() > 0) end_step();
  }
  if (progress_.step < start_.last_step) {
    save_at_end();
    return stopped();
  }
  const bool validated = validate();
  save_at_end();
  if (progress_.skipped_in_a_row > 0) {
    throw diverged(fmt::format("in the last {}; earlier checkpoints in {} are kept",
                               format_counted(progress_.skipped_in_a_row, "step"), (out_ / "checkpoints").string()));
  }
  if (!validated) return stopped();
  if (leads_)
    print_out("done: step {}; metrics, checkpoints and report.html are in {}\n", progress_.step, out_.string());
  return ExitCode::finished;
}

void Run::print_machine() const {
  const int64_t ranks = groups_.mesh().world_size();
  const Target& target = backend_.target();
  const std::string device = target.kind == Target::Kind::cpu ? format_counted(target.num_threads, "thread")
                                                              : fmt::format("one {}", target.name);
  if (ranks > 1) {
    print_out("{} ranks: {} tensor x {} data, ZeRO {}{}; {} each, {:.0f} GFLOP/s in {} matrix products in all\n", ranks,
              groups_.mesh().size(MeshAxis::tensor), groups_.data_size(), config_.parallel.zero,
              config_.parallel.sequence ? ", sequence parallel" : "", device, total_matrix_flops_ / 1e9,
              dtype_name(limits_.compute));
    if (target.kind == Target::Kind::gpu && groups_.exchange_amid_ops())
      print_out("what tensor groups exchange is in no CUDA graph: their forward and backward run op by op\n");
  } else {
    print_out("this machine: {}, {:.0f} GFLOP/s in {} matrix products\n", device, limits_.matrix_flops / 1e9,
              dtype_name(limits_.compute));
  }
  flush_lines();
}

// All ranks answer alike. Asked between two steps: a rank that is alone need not wait for the next one to agree.
bool Run::stopping() {
  if (groups_.group(GroupKind::world) == nullptr) return wants_to_stop();
  if (!stop_agreed_ && begun_steps() == started_at_step_) stop_agreed_ = step_->agree_to_stop(wants_to_stop());
  return stop_agreed_;
}

// What has happened on all ranks alike is said by one.
Error Run::diverged(const std::string& when) const {
  return {ExitCode::diverged, leads_ ? "training diverged: loss or gradients were not finite " + when : std::string()};
}

ExitCode Run::stopped() const {
  if (!leads_) return ExitCode::requeue;
  if (profile_step_ > progress_.step) print_out("step {} was not reached, so there is no profile\n", profile_step_);
  print_out("stopped by {} after step {}; the state is saved, go on with --resume latest\n",
            signals_.requested() ? signals_.name() : "a signal to another rank", progress_.step);
  return ExitCode::requeue;
}

void Run::begin_step(PrefetchedBatches& batches) {
  const int64_t step = begun_steps() + 1;
  const double waited_before = batches.waited_seconds();
  const double lr = learning_rate(config_, step - 1);
  StepProfiler* const profiler = step == profile_step_ ? profiler_ : nullptr;
  if (profiler != nullptr) profiler->start();
  world_.activity().set_step(step);
  world_.activity().set_phase("step");
  step_->begin(lr, batches, profiler, [this] { return wants_to_stop(); });
  begun_.push_back({lr, batches.waited_seconds() - waited_before});
}

// Whether what follows the step depends on its result, or on a device that has nothing else to do.
bool Run::needs_result(int64_t step) const {
  const auto every = [step](int64_t steps) { return steps > 0 && step % steps == 0; };
  return step == start_.last_step || save_due_ || every(config_.checkpoint.every_steps) ||
         every(config_.run.validate_every_steps) || every(config_.comm.compare_every_steps) || step == profile_step_ ||
         step + 1 == profile_step_;
}

// Ends the oldest step that has begun, and does what is due after it.
void Run::end_step() {
  const StepResult result = step_->end();
  const BegunStep begun = begun_.front();
  begun_.pop_front();
  stop_agreed_ = stop_agreed_ || result.stop;
  progress_.step += 1;
  std::optional<StepProfile> profile;
  if (profiler_ != nullptr && progress_.step == profile_step_)
    profile = profiler_->finish(progress_.step, begun.data_seconds, limits_);
  progress_.samples += config_.batch.global;
  progress_.updates = result.updates;
  // A step that only lowers the loss scale neither counts as a failure nor makes up for one.
  last_skipped_ = result.skipped;
  if (!result.lowered_loss_scale()) progress_.skipped_in_a_row = result.skipped ? progress_.skipped_in_a_row + 1 : 0;
  progress_.skipped += result.skipped ? 1 : 0;
  report(result, begun.lr, begun.data_seconds);
  folder_.look();
  print_warnings();
  if (profile) write_profile(*profile);
  after_step(result);
  flush_lines();
}

void Run::after_step(const StepResult& result) {
  if (progress_.skipped_in_a_row > config_.run.max_skipped_steps) {
    finish();
    const std::string checkpoints =
        leads_ && list_checkpoints(out_).empty()
            ? "no checkpoint was saved before"
            : fmt::format("the last checkpoint in {} is untouched", (out_ / "checkpoints").string());
    throw diverged(fmt::format("for {} in a row (run.max_skipped_steps = {}); {}",
                               format_counted(progress_.skipped_in_a_row, "step"), config_.run.max_skipped_steps,
                               checkpoints));
  }
  const int64_t compare_every = config_.comm.compare_every_steps;
  if (compare_every > 0 && progress_.step % compare_every == 0) compare_replicas();
  const bool last = progress_.step == start_.last_step;
  if (!last && validation_due()) validate();
  const int64_t save_every = config_.checkpoint.every_steps;
  save_due_ = save_due_ || (save_every > 0 && progress_.step % save_every == 0);
  // After a skipped step the weights may be what makes it fail: such a checkpoint must not push out a good one.
  if (!last && save_due_ && !result.skipped) save();
}

// A fault of memory or network that no checksum has caught leaves ranks that hold the same weights with different ones.
void Run::compare_replicas() {
  std::string fault;
  const auto compare = [&](GroupKind kind, const char* what, uint32_t checksum) {
    const std::vector<std::string> all = gather_texts(groups_.group(kind), fmt::format("{:08x}", checksum));
    for (size_t i = 1; i < all.size() && fault.empty(); ++i) {
      if (all[i] == all[0]) continue;
      const std::vector<int64_t> ranks = group_ranks(config_, groups_.mesh(), groups_.rank(), kind);
      const auto rank = static_cast<int>(ranks[i]);
      fault = fmt::format(
          "after step {} the {} of rank {} on {} differ from those of rank {} on {}, which should be the same: memory "
          "or "
          "network at fault; go on from a checkpoint with --resume latest",
          progress_.step, what, rank, world_.host(rank), ranks[0], world_.host(static_cast<int>(ranks[0])));
    }
  };
  if (groups_.group(GroupKind::data) != nullptr) compare(GroupKind::data, "weights", step_->weights_checksum());
  if (groups_.group(GroupKind::tensor) != nullptr) compare(GroupKind::tensor, "norms", step_->norms_checksum());
  agree_on(groups_.group(GroupKind::world), world_, [&] {
    if (!fault.empty()) throw Error(ExitCode::device, "{}", fault);
  });
}

// A tensor group exchanges activations all the time, which wants the links within a node.
void Run::warn_of_spread_tensor_groups() const {
  const std::vector<int64_t> ranks = group_ranks(config_, groups_.mesh(), groups_.rank(), GroupKind::tensor);
  for (const int64_t rank : ranks) {
    const std::string& host = world_.host(static_cast<int>(rank));
    if (host == world_.host(static_cast<int>(ranks[0]))) continue;
    print_err(
        "warning: the tensor group of rank {} spans nodes ({} and {}): parallel.tensor = {} is more than a node "
        "holds\n",
        groups_.rank(), world_.host(static_cast<int>(ranks[0])), host, config_.parallel.tensor);
    return;
  }
}

void Run::warn_of_repeated_validation() const {
  if (!data_.validation) return;
  const int64_t wanted = config_.run.validation_samples;
  int64_t samples = 0;
  for (const Dataset::SourceReport& source : data_.validation->report(wanted)) samples += source.samples;
  if (samples >= wanted) return;
  print_err("warning: run.validation_samples = {}: data.validation holds {}, so some count more than once\n", wanted,
            format_counted(samples, "sample"));
}

bool Run::validation_due() const {
  const int64_t every = config_.run.validate_every_steps;
  return every > 0 && progress_.step > 0 && progress_.step % every == 0;
}

bool Run::validation_recorded() const {
  bool recorded = false;
  if (leads_) {
    const RunHistory history = read_run_history(out_ / "metrics.jsonl");
    recorded = std::any_of(history.validations.begin(), history.validations.end(),
                           [&](const RunHistory::Validation& validation) { return validation.step == progress_.step; });
  }
  return !broadcast_text(groups_.group(GroupKind::world), recorded ? "yes" : "", 0).empty();
}

void Run::report(const StepResult& result, double lr, double data_seconds) {
  const double seconds = result.seconds;
  // Weighs the last twenty steps or so; the first step, which sets up primitives, only until the next.
  average_step_seconds_ =
      average_step_seconds_ == 0 || progress_.step <= 2 ? seconds : 0.95 * average_step_seconds_ + 0.05 * seconds;
  if (!leads_) return;
  const int64_t every = config_.log.every_steps;
  if (progress_.step % every != 0 && progress_.step != start_.last_step && !result.skipped) return;
  const int64_t tokens_per_step = step_->counted_tokens();
  const StepMetrics metrics{.step = progress_.step,
                            .loss = result.loss,
                            .grad_norm = result.grad_norm,
                            .lr = lr,
                            .tokens = progress_.samples * config_.model.sequence_length,
                            .samples = progress_.samples,
                            .step_seconds = seconds,
                            .data_seconds = data_seconds,
                            .tokens_per_second = static_cast<double>(tokens_per_step) / seconds,
                            .mfu = model_flops_per_step_ / seconds / total_matrix_flops_,
                            .peak_bytes = step_->taken().total(),
                            .skipped = result.skipped,
                            .loss_scale = config_.precision.scales_loss() ? result.loss_scale : 0};
  folder_.record([&] { metrics_->write_step(metrics); });
  const double eta = average_step_seconds_ * static_cast<double>(start_.last_step - progress_.step);
  print_out("{}\n", format_step_line(metrics, config_.run.steps, backend_.target().memory_bytes, eta));
}

void Run::write_profile(const StepProfile& profile) const {
  if (!leads_) return;
  const fs::path trace = out_ / fmt::format("trace-step{}.json", profile.step);
  write_whole_file(trace, step_profile_trace(profile));
  print_out("{}trace: {}\n", step_profile_table(profile), trace.string());
}

// False if a stop left it out; whoever resumes that step makes up for it.
bool Run::validate() {
  if (!data_.validation || validated_step_ == progress_.step) return true;
  const int64_t samples = config_.run.validation_samples;
  world_.activity().set_phase("validation");
  const Target& target = backend_.target();
  PrefetchedBatches batches(config_, *data_.validation, 0, place_, prefetch_ring(config_, target),
                            rings_->data() + prefetch_ring_bytes(config_, target));
  FirstSamples counted(batches, samples, config_, place_);
  double sum = 0;
  for (int64_t first = 0; first < samples; first += config_.batch.micro * place_.size) {
    if (step_->agree_to_stop(wants_to_stop())) {
      stop_agreed_ = true;
      return false;
    }
    sum += step_->evaluate(1, counted);
  }
  validated_step_ = progress_.step;
  if (!leads_) return true;
  const double loss = sum / static_cast<double>(samples * config_.model.sequence_length);
  folder_.record([&] { metrics_->write_validation(progress_.step, loss); });
  print_out("validation after step {}: loss {:.4f} over {}\n", progress_.step, std::isnan(loss) ? std::abs(loss) : loss,
            format_counted(samples, "sequence"));
  return true;
}

void Run::save() {
  if (saved_step_ == progress_.step) return;
  const auto start = Clock::now();
  world_.activity().set_phase("checkpoint");
  if (leads_) folder_.record([&] { metrics_->sync(); });
  out_ = broadcast_text(groups_.group(GroupKind::world), folder_.place_to_save(out_).string(), 0);
  save_state(config_, *step_, progress_, groups_, world_, out_);
  saved_step_ = progress_.step;
  save_due_ = false;
  if (leads_) print_out("checkpoint of step {} saved in {}\n", progress_.step, format_duration(seconds_since(start)));
  // After a skipped step the weights may be what makes it fail: no good checkpoint is given up for them.
  if (!last_skipped_ && progress_.skipped_in_a_row == 0) retain();
}

// A folder that cannot be written to any more is no reason to lose the state, but one to end with an error.
void Run::save_at_end() {
  try {
    save();
    folder_.record([&] { finish(); });
  } catch (const PeerGone&) {
    throw;
  } catch (const Error& error) {
    if (folder_.fault().empty()) throw;
    throw Error(ExitCode::checkpoint, "{}; the state after step {} cannot be saved: {}", folder_.fault(),
                progress_.step, error.what());
  }
  if (broadcast_text(groups_.group(GroupKind::world), folder_.fault(), 0).empty()) return;
  throw Error(ExitCode::checkpoint, leads_ ? fmt::format("{}; the state after step {} is saved in {}", folder_.fault(),
                                                         progress_.step, (out_ / "checkpoints").string())
                                           : std::string());
}

void Run::retain() {
  if (!leads_) return;
  const std::string warning = apply_retention(out_, config_.checkpoint.keep_last, config_.checkpoint.keep_every);
  if (!warning.empty()) print_err("warning: {}\n", warning);
}

void Run::finish() {
  if (leads_) write_run_page(out_, fmt::format("gptrain: {}", out_.string()), show_config(config_));
}

// One rank of the run, from its groups to the end.
ExitCode run_rank(const RunConfig& config, const TrainOptions& options, const StopSignals& signals, World& world) {
  world.activity().set_phase("set-up");
  RankGroups groups(config, world);
  const int local_ranks = ranks_on_this_host(world);
  const int threads = threads_of_rank(config, options.ranks, local_ranks);
  Communicator* const all = groups.group(GroupKind::world);
  const RankDevice device = take_device(config, all, world, threads);
  groups.use_memory_of(*device.backend, device.apart, config.comm.timeout_seconds);
  StepPlan plan;
  agree_on(all, world, [&] {
    Target share = device.backend->target();
    share.device_links = groups.has_links();
    share.of_processes = world.of_processes();
    plan = plan_step(config, share, world.size(), world.rank());
    share.sharing = device.sharing;
    const std::string shortage = memory_shortage(config, share, world.size(), world.rank(), plan.memory().arenas);
    if (!shortage.empty()) throw Error(ExitCode::device, "{}", shortage);
  });
  std::optional<StepProfiler> profiler;
  if (options.profile_step) profiler.emplace(*device.backend).set_stream(groups.stream());
  Backend& backend = profiler ? profiler->backend() : *device.backend;
  return Run(config, options, signals, backend, profiler ? &*profiler : nullptr, plan, groups, world).loop();
}

// What the ranks must be started with alike: the config, and those options of the command that say what to do.
std::string config_fact(const RunConfig& config, const TrainOptions& options) {
  std::string lines = list_config(config);
  if (options.resume) lines += fmt::format("--resume {}\n", *options.resume);
  if (options.steps) lines += fmt::format("--steps {}\n", *options.steps);
  if (options.profile_step) lines += fmt::format("--profile-step {}\n", *options.profile_step);
  return lines;
}

ExitCode train_as_process(const RunConfig& config, const TrainOptions& options, const StopSignals& signals,
                          const Launch& launch) {
  try {
    const auto world = make_process_world(launch, {.facts = {{config_fact_name, config_fact(config, options)}},
                                                   .same_instruction_set = !config.comm.mixed_machines,
                                                   .timeout = {.seconds = config.comm.timeout_seconds},
                                                   .interface = config.comm.interface});
    return run_rank(config, options, signals, *world);
  } catch (const Error& error) {
    if (*error.what() == '\0') let_rank_0_speak();
    throw;
  }
}

}  // namespace

ExitCode train(const RunConfig& config, const TrainOptions& options, const Launch& launch) {
  // First of all: a request to stop that comes while the run is being set up is honoured too.
  const StopSignals signals;
  if (launch.size > 1) return train_as_process(config, options, signals, launch);
  const auto ranks = static_cast<int>(options.ranks);
  if (ranks == 1) return run_rank(config, options, signals, *make_local_world(1).front());
  std::atomic<ExitCode> code = ExitCode::finished;
  run_local_ranks(ranks, [&](World& world) {
    const ExitCode own = run_rank(config, options, signals, world);
    if (world.rank() == 0) code = own;
  });
  return code;
}

}  // namespace gptrain
