#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <malloc.h>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/lines.h"
#include "base/output.h"
#include "base/output_file.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/option_checks.h"
#include "comm/bootstrap.h"
#include "config/axis_sizes.h"
#include "config/context_method.h"
#include "config/elastic.h"
#include "config/load.h"
#include "data/dataset.h"
#include "data/run_tokenizer.h"
#include "data/token_set.h"
#include "machine/hierarchy_times.h"
#include "parallel/groups.h"
#include "planner/dry_run.h"
#include "planner/faster_layout.h"
#include "planner/layouts.h"
#include "planner/predict.h"
#include "report/dry_run.h"
#include "report/dry_run_page.h"
#include "report/recompute_page.h"
#include "report/timeline_page.h"
#include "step/device.h"
#include "step/step_profile.h"
#include "storage/stored_files.h"
#include "train/metrics.h"
#include "train/refuse_on_all_ranks.h"
#include "train/run.h"
#include "train/run_files.h"
#include "train/set_up.h"
#include "train/signals.h"

namespace gptrain::inline cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* latest = "latest";
constexpr double giga = 1e9;

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume = latest;
  std::string init_from;
  std::vector<std::string> accepted;
  int64_t steps = 0;
  int64_t profile_step = 0;
  int64_t world_size = 0;  // not given
  int64_t ranks = 0;       // not given
  std::string target;
  std::string cluster;
  std::string software;
  double tokens_per_second = 0;
  double price = 0;         // not given
  double storage_gbps = 0;  // not given
  std::string trace;
  std::string timeline;
  std::string memory_curve;
  std::string html;
  bool dry_run = false;
  bool json = false;
};

// Shares and epochs of the data sources. Epochs need the token files, or the number of their tokens, and are left out
// if both are missing, which a dry run allows.
std::vector<SourceForecast> forecast_sources(const RunConfig& config) {
  std::vector<SourceForecast> forecasts;
  const auto& sources = config.data.train;
  const bool present = std::all_of(sources.begin(), sources.end(), [](const DataSource& source) {
    return source.tokens > 0 || !token_files_of(source.path).empty();
  });
  if (present) {
    find_run_tokenizer(config.data, config.model.vocab_size);  // refuses what training would refuse
    const Dataset dataset = open_training_data(config, config.run.seed);
    check_length(config.batch.global, config.run.steps, dataset);
    for (const auto& report : dataset.report(config.run.steps * config.batch.global)) {
      forecasts.push_back({report.path, report.share, report.epochs});
    }
    return forecasts;
  }
  double total = 0;
  for (const DataSource& source : sources) total += source.weight;
  // Shares that depend on file sizes are unknown as well.
  const bool known = sources.front().epochs == 0 && config.data.temperature == 0;
  for (const DataSource& source : sources)
    forecasts.push_back({source.path, known ? source.weight / total : std::nan(""), std::nullopt});
  return forecasts;
}

// Returns the number of ranks asked for, else the fewest that the mesh can have.
int64_t planned_world_size(const TrainArguments& arguments) {
  if (arguments.world_size > 0) return arguments.world_size;
  if (arguments.ranks > 0) return arguments.ranks;
  return ranks_of_model(load_config(arguments.config, arguments.overrides).parallel);
}

// Writes planned steps to a trace, rank by rank.
class PlannedTrace {
 public:
  explicit PlannedTrace(const fs::path& path) : file_(path) { file_.write(trace_head); }

  void add(const StepProfile& profile, bool has_times) {
    if (std::exchange(is_first_, false)) {
      if (has_times) table_ = step_profile_table(profile);
    } else {
      write(trace_between);
    }
    write_trace_events(profile, [this](std::string_view text) { write(text); });
  }

  // Ends the file and returns the profile table of the first rank; empty if the target has no rates.
  std::string finish() {
    file_.write(text_ + std::string(trace_tail));
    file_.commit();
    return std::move(table_);
  }

 private:
  void write(std::string_view text) {
    constexpr size_t chunk_bytes = size_t{1} << 20;
    text_ += text;
    if (text_.size() < chunk_bytes) return;
    file_.write(text_);
    text_.clear();
  }

  AtomicFile file_;
  std::string text_;  // not yet written
  std::string table_;
  bool is_first_ = true;
};

// Returns the machine to plan for. Without --target it is this machine, and `rates` is empty.
PlannedMachine planned_machine(const TrainArguments& arguments, const RunConfig& config, int64_t world_size) {
  PlannedMachine machine;
  if (arguments.target.empty()) {
    machine.target = planned_device(config, world_size, std::max<int64_t>(1, arguments.ranks));
  } else {
    machine.rates = machine_named({arguments.target, arguments.cluster, arguments.software}, arguments.ranks == 0);
    if (arguments.storage_gbps > 0) machine.rates->cluster.storage_bytes_per_second = arguments.storage_gbps * giga;
    machine.target = planned_target(*machine.rates, config.run.threads, world_size);
    require_links(*machine.rates, world_size);
  }
  machine.target.of_processes = arguments.ranks == 0;
  require_target(config, machine.target, ExitCode::usage);
  return machine;
}

StorageRates planned_storage(const TrainArguments& arguments, const PlannedMachine& machine) {
  return machine.rates ? storage_rates(machine.rates->cluster) : StorageRates{.shared = arguments.storage_gbps * giga};
}

void write_memory_curve(const TrainArguments& arguments, const std::optional<RecomputeForecast>& forecast) {
  if (!forecast)
    throw Error(ExitCode::usage, "--memory-curve needs memory.recompute = \"optimal\", whose choices it draws");
  const std::string name = fs::path(arguments.config).stem().string();
  AtomicFile page(arguments.memory_curve);
  page.write(recompute_page(*forecast, fmt::format("{}: time against memory", name)));
  page.commit();
}

void write_timeline(const TrainArguments& arguments, const StepConfig& config, const PlannedPipeline& pipeline,
                    bool has_times) {
  const std::string name = fs::path(arguments.config).stem().string();
  AtomicFile page(arguments.timeline);
  page.write(timeline_page(pipeline, fmt::format("{} on {} stages", name, config.parallel.pipeline), has_times));
  page.commit();
}

void write_page(const TrainArguments& arguments, const DryRun& result) {
  AtomicFile page(arguments.html);
  page.write(dry_run_page(result, "Dry run of " + fs::path(arguments.config).stem().string()));
  page.commit();
}

void add_to_trace(PlannedTrace& trace, const StepConfig& config, const PlannedMachine& machine, PlannedRun& run) {
  for (TimedLog& timed : run.logs) {
    trace.add(planned_profile(timed.rank, config.precision.compute, std::move(timed.log), machine.target, timed.times,
                              run.step.pipeline.stages[timed.stage].not_before),
              machine.rates.has_value());
  }
}

// Returns a layout that is faster than the run's, with settings that lead to it from the file and its overrides.
std::optional<FasterLayout> faster_layout(const TrainArguments& arguments, const DryRun& run, const Machine& machine) {
  const int64_t world_size = run.world.mesh.world_size();
  std::optional<FasterLayout> faster = find_faster_layout(run.config, machine, world_size, run.forecast->step_seconds);
  if (!faster) return std::nullopt;
  const auto is_reached_by = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> overrides = arguments.overrides;
    overrides.insert(overrides.end(), settings.begin(), settings.end());
    try {
      return layout_of(load_config(arguments.config, overrides, world_size), world_size) == faster->layout;
    } catch (const Error&) {
      return false;
    }
  };
  faster->settings = settings_between(layout_of(run.config, world_size), faster->layout);
  if (is_reached_by(faster->settings)) return faster;
  // A file may give the number of micro-batches in place of the batch.
  faster->settings.emplace_back("batch.accumulation=null");
  faster->settings.push_back(fmt::format("batch.global={}", run.config.batch.global));
  return is_reached_by(faster->settings) ? faster : std::nullopt;
}

// Keeps freed memory for the next allocation. A dry run makes and frees megabytes for each stage of a pipeline, and
// giving them back to the system each time would take a quarter of its time.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

void dry_run(const TrainArguments& arguments) {
  keep_freed_memory();
  for (const std::string* path : {&arguments.trace, &arguments.timeline, &arguments.memory_curve, &arguments.html})
    if (!path->empty()) check_can_write(*path, ExitCode::usage);
  const int64_t started = planned_world_size(arguments);
  RunConfig config = load_config(arguments.config, arguments.overrides, started);
  const int64_t world_size = training_ranks(config, started);
  const PlannedMachine machine = planned_machine(arguments, config, world_size);
  choose_context_method(config, leaves_node(config.parallel, machine.target.ranks_per_node));
  choose_planned_hierarchy(config, machine.target, machine.rates ? &*machine.rates : nullptr, world_size);
  const bool may_clone = config.memory.uses_disk() && config.memory.disk_clones == DiskClones::automatic;
  if (arguments.target.empty() && may_clone && config.checkpoint.keeps_snapshot())
    config.memory.clones_files = clone_obstacle(config.memory.disk_folders()).empty();
  refuse_same_file({"--trace", arguments.trace}, {"--timeline", arguments.timeline});
  refuse_same_file({"--trace", arguments.trace}, {"--memory-curve", arguments.memory_curve});
  refuse_same_file({"--timeline", arguments.timeline}, {"--memory-curve", arguments.memory_curve});
  for (const auto& other : {std::pair("--trace", arguments.trace), std::pair("--timeline", arguments.timeline),
                            std::pair("--memory-curve", arguments.memory_curve)})
    refuse_same_file({other.first, other.second}, {"--html", arguments.html});
  std::optional<PlannedTrace> trace;
  if (!arguments.trace.empty()) trace.emplace(arguments.trace);
  if (config.parallel.pipeline == 1 && !arguments.timeline.empty())
    throw Error(ExitCode::usage,
                "--timeline draws the stages of a pipeline, but parallel.pipeline is 1 (set it to 2 or more)");
  const LoggedRanks logged = trace                                          ? LoggedRanks::all
                             : machine.rates || !arguments.timeline.empty() ? LoggedRanks::of_stages
                                                                            : LoggedRanks::none;
  PlannedRun run = plan_run(config, machine, world_size, logged, trace || !arguments.timeline.empty());
  if (!arguments.timeline.empty()) write_timeline(arguments, config, run.step.pipeline, machine.rates.has_value());
  if (trace) add_to_trace(*trace, config, machine, run);
  run.logs.clear();
  DryRun result = make_dry_run(config, machine, run, planned_storage(arguments, machine));
  const bool has_fixed_ranks = arguments.ranks == 0 && !config.parallel.elastic && !config.parallel.zero_node_copy;
  if (result.forecast && result.shortage.empty() && has_fixed_ranks && !is_measured(*machine.rates))
    result.faster = faster_layout(arguments, result, *machine.rates);
  if (!arguments.memory_curve.empty()) write_memory_curve(arguments, result.recomputation);
  result.sources = forecast_sources(config);
  if (const std::string repeated = warning_of_repeated_files(config.data.train); !repeated.empty())
    result.warnings += one_line(repeated) + "\n";
  result.price = arguments.price;
  if (world_size < started) result.warnings += elastic_line(config, started) + "\n";
  if (arguments.tokens_per_second > 0) {
    result.rate = TokenRate{arguments.tokens_per_second, "given"};
  } else if (arguments.target.empty()) {
    const fs::path out = config.run.out;
    if (const auto rate = read_records(out / metrics_file_name).tokens_per_second; rate)
      result.rate = TokenRate{*rate, fmt::format("measured in {}", out.string())};
  }
  if (!arguments.html.empty()) write_page(arguments, result);
  const std::string table = trace ? trace->finish() : "";
  if (arguments.json) return write_json(dry_run_json(result));
  write_out(dry_run_text(result) + (table.empty() ? "" : "\n" + table));
}

CLI::Validator change_kind() {
  return CLI::Validator(
      [](std::string& text) {
        return text == "data" || text == "schedule" ? std::string() : text + " is neither data nor schedule";
      },
      "");
}

// The config, for as many ranks as the launcher started or this process will start.
RunConfig load_for_ranks(const TrainArguments& arguments, const Launch& launch) {
  if (launch.size > 1 && arguments.ranks > 1) {
    throw Error(ExitCode::usage, "--ranks {} starts threads, but there are {} processes already: leave --ranks out",
                arguments.ranks, launch.size);
  }
  if (arguments.resume.empty())
    throw Error(ExitCode::usage, "--resume \"\": names no folder (give {}, a folder, or no value)", latest);
  const int64_t num_ranks = std::max<int64_t>(launch.size, arguments.ranks);
  RunConfig config = load_config(arguments.config, arguments.overrides, num_ranks);
  refuse_to_replace_config(arguments.config, config.run.out, show_config(config, ConfigText::for_any_ranks));
  make_mesh(config, training_ranks(config, num_ranks));
  return config;
}

// Options of a run that a dry run refuses.
struct RunOptions {
  CLI::Option *resume, *init, *steps, *profile_step;
};

RunOptions add_run_options(CLI::App& command, TrainArguments& arguments) {
  RunOptions options{};
  options.resume = command.add_option("--resume", arguments.resume, "continue from the newest checkpoint, or from DIR")
                       ->expected(0, 1)
                       ->default_str(latest)  // value of --resume without an argument
                       ->type_name("[DIR]");
  options.init =
      command.add_option("--init-from", arguments.init_from, "start from the weights in DIR, unless a run is resumed")
          ->type_name("DIR");
  command.add_option("--accept-changes", arguments.accepted, "data or schedule: resume although these have changed")
      ->check(change_kind())
      ->type_name("KIND")
      ->allow_extra_args(false);
  options.steps =
      command.add_option("--steps", arguments.steps, "end this call after N steps; 0: save the initial state")
          ->check(whole_number_from(0))
          ->type_name("N");
  options.profile_step = command
                             .add_option("--profile-step", arguments.profile_step,
                                         "time step N op by op: a table, and OUT/trace-stepN.json")
                             ->check(whole_number_from(1))
                             ->type_name("N");
  return options;
}

void add_dry_run_options(CLI::App& command, TrainArguments& arguments, CLI::Option* dry, CLI::Option* ranks) {
  const auto add_text = [&](const char* name, std::string& text, const char* description, const char* type) {
    return command.add_option(name, text, description)->check(some_text())->type_name(type)->needs(dry);
  };
  const auto add_rate = [&](const char* name, auto& rate, const char* description, const char* type) {
    return command.add_option(name, rate, description)->check(positive_number())->type_name(type)->needs(dry);
  };
  command.add_option("--world-size", arguments.world_size, "processes to plan for (default: the fewest possible)")
      ->check(whole_number_from(1))
      ->type_name("N")
      ->needs(dry)
      ->excludes(ranks);
  CLI::Option* target =
      add_text("--target", arguments.target, "device such as h100, or profile (default: this machine)", "NAME");
  add_text("--cluster", arguments.cluster, "cluster such as dgx-h100, or profile (default: device's)", "NAME")
      ->needs(target);
  add_text("--software", arguments.software, "software to predict, such as nemo (default: gptrain)", "NAME")
      ->needs(target);
  add_rate("--price", arguments.price, "price of a device-hour: prints the cost of the run", "P")->needs(target);
  add_rate("--storage-gbps", arguments.storage_gbps, "GB/s that a node writes, to predict a checkpoint's time", "R");
  add_rate("--tokens-per-second", arguments.tokens_per_second, "speed from which to compute the run's time", "R");
  add_text("--trace", arguments.trace, "write the planned step, event by event, for Perfetto", "FILE");
  add_text("--timeline", arguments.timeline, "draw the planned step of a pipeline, as an HTML page", "FILE");
  add_text("--memory-curve", arguments.memory_curve, "draw time over memory of activations, as an HTML page", "FILE");
  add_text("--html", arguments.html, "write the dry run as an HTML page", "FILE");
  command.add_flag("--json", arguments.json, "print the dry run as JSON")->needs(dry);
}

ExitCode run_training(const TrainArguments& arguments, const RunOptions& given) {
  const Launch launch = find_launch();
  RunConfig config;
  try {
    config = load_for_ranks(arguments, launch);
  } catch (const Error& error) {
    refuse_on_all_ranks(launch, error);
  }
  TrainOptions options;
  options.ranks = std::max<int64_t>(arguments.ranks, 1);
  load_kernels_at_start(std::max<int64_t>(launch.size, options.ranks));
  if (*given.resume) options.resume = arguments.resume;
  if (*given.init) options.init_from = arguments.init_from;
  const auto accepts = [&](const char* kind) {
    return std::find(arguments.accepted.begin(), arguments.accepted.end(), kind) != arguments.accepted.end();
  };
  options.accepted = {.data = accepts("data"), .schedule = accepts("schedule")};
  if (*given.steps) options.steps = arguments.steps;
  if (*given.profile_step) options.profile_step = arguments.profile_step;
  const ExitCode result = train::train(config, options, launch);
  flush_lines();
  return result;
}

}  // namespace

void add_train_command(CLI::App& app, ExitCode& result) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "train a model, or show what training would cost");
  // Wide enough for most names and their values, so that the help fits a screen.
  auto formatter = std::make_shared<CLI::Formatter>();
  formatter->column_width(44);
  command->formatter(formatter);
  command->add_option("CONFIG", arguments->config, "run config (JSON, comments allowed)")->required();
  const RunOptions options = add_run_options(*command, *arguments);
  command->add_option("--set", arguments->overrides, "set a config key (null: its default); repeatable")
      ->type_name("key.path=value")
      ->allow_extra_args(false);
  CLI::Option* dry =
      command->add_flag("--dry-run", arguments->dry_run, "print parameters, memory, FLOPs and time; no training");
  dry->excludes(options.resume)->excludes(options.init)->excludes(options.steps)->excludes(options.profile_step);
  CLI::Option* ranks =
      command->add_option("--ranks", arguments->ranks, "ranks, as threads of this process (default: 1)")
          ->check(whole_number_from(1))
          ->type_name("N");
  add_dry_run_options(*command, *arguments, dry, ranks);
  set_examples(command, {"gptrain train configs/demo.json --resume latest --set optimizer.lr=1e-3",
                         "gptrain train configs/gpt2-124m.json --dry-run --target h100"});
  command->callback([arguments, options, &result] {
    if (!arguments->dry_run) {
      result = run_training(*arguments, options);
    } else if (!arguments->accepted.empty()) {
      throw Error(ExitCode::usage, "--accept-changes: a dry run resumes nothing; leave it out");
    } else {
      dry_run(*arguments);
    }
  });
}

}  // namespace gptrain::cli
