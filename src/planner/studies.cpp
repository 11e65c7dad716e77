#include "planner/studies.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "config/axis_sizes.h"
#include "config/faults.h"
#include "config/load.h"
#include "fit/choose_step.h"
#include "fit/plan_world.h"
#include "fit/saving_methods.h"
#include "model/spec/layer_kinds.h"
#include "model/spec/spec.h"
#include "planner/layouts.h"
#include "planner/link_needs.h"
#include "planner/predict.h"
#include "planner/run_speed.h"
#include "planner/search.h"
#include "step/device.h"

namespace gptrain::inline planner {
namespace {

std::string first_line(const Error& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// Returns all faults of a config on one line.
std::string all_faults(const Error& error) {
  std::string text = error.what();
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', end)) text.replace(end, 1, "; ");
  return text;
}

std::vector<std::string> joined(std::span<const std::string> first, const std::vector<std::string>& then) {
  std::vector<std::string> all(first.begin(), first.end());
  all.insert(all.end(), then.begin(), then.end());
  return all;
}

// Returns the point for the config that `make` returns. The point is refused if the config or its plan throws an Error.
StudyPoint point_of(std::vector<std::string> values, const Machine& machine, int64_t gpus, double price,
                    const std::function<RunConfig()>& make) {
  StudyPoint point{.values = std::move(values), .gpus = gpus};
  std::optional<RunConfig> config;
  try {
    config = make();
  } catch (const Error& error) {
    point.refused = all_faults(error);
    return point;
  }
  try {
    require_target(*config, planned_target(machine, config->run.threads, gpus), ExitCode::usage);
    make_mesh(*config, gpus);
    point.parameters = make_spec(config->model).parameters();
    point.result = predict_layout(*config, machine, layout_of(*config, gpus), price);
  } catch (const Error& error) {
    point.refused = first_line(error);
  }
  return point;
}

// Returns the config with another batch.global, as if read from a file. THROWS Error(usage) if a rule forbids it.
RunConfig with_batch(RunConfig config, int64_t gpus, int64_t global) {
  const int64_t model_ranks = ranks_of_model(config.parallel);
  const int64_t data = gpus / model_ranks;
  if (data == 0 || gpus % model_ranks != 0) make_mesh(config, gpus);  // throws, with valid sizes in its message
  if (global % data != 0)
    throw Error(ExitCode::usage, "batch.global = {}: must be a multiple of the number of data ranks, {}", global, data);
  config.batch.global = global;
  while (global / data % config.batch.micro != 0) --config.batch.micro;
  config.batch.accumulation = global / data / config.batch.micro;
  return parse_config(show_config(config), {}, "the config", gpus);
}

// A point of a sweep: its values on the axes, and all --set settings.
struct SweptPoint {
  std::vector<std::string> values, settings;
};

std::vector<SweptPoint> swept_points(std::span<const std::string> overrides, const std::vector<SweepAxis>& axes) {
  std::vector<SweptPoint> points = {{{}, {overrides.begin(), overrides.end()}}};
  for (const SweepAxis& axis : axes) {
    std::vector<SweptPoint> longer;
    for (const SweptPoint& point : points) {
      for (const std::string& value : axis.values) {
        longer.push_back(point);
        longer.back().values.push_back(value);
        longer.back().settings.push_back(axis.key + "=" + value);
      }
    }
    points = std::move(longer);
  }
  return points;
}

// Returns the config of the first point that no rule forbids; if all are forbidden, the file's own. THROWS Error(usage)
// if that is forbidden, too.
RunConfig any_config(const std::filesystem::path& file, std::span<const std::string> overrides,
                     const std::vector<SweptPoint>& points, int64_t gpus) {
  for (const SweptPoint& point : points) {
    try {
      return load_config(file, point.settings, gpus);
    } catch (const Error&) {
    }
  }
  return load_config(file, overrides, gpus);
}

// Sets the memory that points are compared with.
void set_memory(Study& study, const Target& target) {
  study.device_bytes = target.bytes_of_rank();
  study.host_bytes = target.host_bytes;
}

}  // namespace

Study sweep_keys(const std::filesystem::path& file, std::span<const std::string> overrides,
                 const std::vector<SweepAxis>& axes, const Machine& machine, int64_t gpus, double price) {
  const std::vector<SweptPoint> points = swept_points(overrides, axes);
  const RunConfig config = any_config(file, overrides, points, gpus);
  Study study{.kind = Study::Kind::sweep,
              .machine = machine_name(machine),
              .origin = step_origin(machine),
              .error = expected_error(machine, config.parallel.zero)};
  study.title = fmt::format("{} on {}", file.stem().string(), format_counted(gpus, "device"));
  set_memory(study, planned_target(machine, config.run.threads, gpus));
  for (const SweepAxis& axis : axes) study.axes.push_back(axis.key);
  for (const SweptPoint& point : points)
    study.points.push_back(
        point_of(point.values, machine, gpus, price, [&] { return load_config(file, point.settings, gpus); }));
  return study;
}

Study compare_methods(const std::filesystem::path& file, std::span<const std::string> overrides, const Machine& machine,
                      int64_t gpus, double price) {
  const RunConfig config = load_config(file, overrides, gpus);
  Study study{.kind = Study::Kind::methods,
              .machine = machine_name(machine),
              .origin = step_origin(machine),
              .error = expected_error(machine, config.parallel.zero)};
  study.title =
      fmt::format("methods that save memory, {} on {} device{}", file.stem().string(), gpus, gpus > 1 ? "s" : "");
  study.axes = {"method"};
  const Target target = planned_target(machine, config.run.threads, gpus);
  set_memory(study, target);
  for (const SavingMethod& method : saving_methods) {
    if (!method.works_on(target)) continue;
    study.points.push_back(point_of({std::string(method.name)}, machine, gpus, price, [&] {
      return load_config(file, joined(overrides, method.on(config.memory)), gpus);
    }));
    study.points.back().settings = method.on(config.memory);
  }
  return study;
}

Study scale_devices(const RunConfig& config, const Machine& machine, int64_t first, int64_t last, double price) {
  Study study{.kind = Study::Kind::scale,
              .machine = machine_name(machine),
              .origin = step_origin(machine),
              .error = expected_error(machine, config.parallel.zero)};
  study.title = fmt::format("{} to {} devices, batch.global = {} on {}", first, last, config.batch.global, first);
  study.note =
      "strong: the batch stays the same; weak: it grows with the number of devices. The prediction assumes that all "
      "ranks are equally fast; published steps slowed down with more devices by up to 4% more than predicted";
  set_memory(study, planned_target(machine, config.run.threads, first));
  study.axes = {"scaling", "devices"};
  for (const bool weak : {false, true}) {
    for (int64_t gpus = first; gpus <= last; gpus *= 2) {
      study.points.push_back(point_of({weak ? "weak" : "strong", fmt::format("{}", gpus)}, machine, gpus, price, [&] {
        return with_batch(config, gpus, config.batch.global * (weak ? gpus / first : 1));
      }));
    }
  }
  return study;
}

Study vary_links(const RunConfig& config, const Machine& machine, int64_t gpus, const std::vector<int64_t>& nics,
                 double price) {
  constexpr std::array<double, 3> factors = {0.5, 1, 2};
  Study study{.kind = Study::Kind::links,
              .machine = machine_name(machine),
              .origin = step_origin(machine),
              .error = expected_error(machine, config.parallel.zero)};
  study.title = fmt::format("NICs of a node, on {} devices", gpus);
  study.axes = {"Gbit/s of each", "NICs"};
  study.keys = {"nic_gbit_per_second", "nics_per_node"};
  const Mesh mesh = make_mesh(config, gpus);
  const Target target = planned_target(machine, config.run.threads, gpus);
  set_memory(study, target);
  // Plans do not depend on links; only times do.
  std::vector<std::pair<int64_t, StepLog>> logs;
  const WorldPlan plan = plan_world({config, target, gpus}, [&](int64_t rank, StepPlan of_rank) {
    if (of_rank.design->stages.stage == std::ssize(logs)) logs.emplace_back(rank, std::move(of_rank.log));
  });
  const CheckpointForecast checkpoint = planned_checkpoint(machine, config, plan, gpus);
  for (const double factor : factors) {
    for (const int64_t number : nics) {
      Machine changed = machine;
      changed.cluster.nics_per_node = number;
      changed.cluster.nic_bytes_per_second *= factor;
      std::vector<StageLog> stages;
      for (const auto& [rank, log] : logs)
        stages.push_back({&log, EventTimes(changed, config, config.run.threads, mesh, rank)});
      const SimulatedStep step = simulate_step(stages);
      const StepForecast forecast = forecast_step(changed, step, gpus, checkpoint, config.checkpoint.asynchronous);
      StudyPoint point{
          .values = {fmt::format("{:g}", 8 * changed.cluster.nic_bytes_per_second / 1e9), fmt::format("{}", number)},
          .parameters = plan.spec.parameters(),
          .gpus = gpus,
          .result = layout_result(config, target, plan, forecast, layout_of(config, gpus), price)};
      study.points.push_back(std::move(point));
    }
  }
  return study;
}

namespace {

struct Precision {
  std::string_view name;
  std::string_view compute;    // value of precision.compute
  std::string_view more = "";  // another setting; empty: none
};
constexpr std::array<Precision, 6> precisions = {
    {{"fp32", "fp32"},
     {"bf16", "bf16"},
     {"fp16", "fp16"},
     {"bf16-pure", "bf16-pure"},
     {"bf16-pure, bf16 gradients", "bf16-pure", "precision.gradients=bf16"},
     {"bf16, fp8 linears", "bf16", "precision.linears=fp8"}}};
constexpr std::array<std::string_view, 4> recomputations = {"none", "selective", "ffn", "block"};

// One row of a fit study: its values on the axes except for the model's size, and its settings.
struct FitRow {
  std::vector<std::string> values;
  std::vector<std::string> settings;
};

RunConfig family_config(const std::string& family, const FitRow& row, int64_t layers, int64_t gpus) {
  const std::string shape =
      family == "llama"
          ? R"("norm": "rmsnorm", "activation": "swiglu", "positions": "rope", "bias": false, "tied_head": false, "vocab_size": 32000, "sequence_length": 4096)"
          : R"("vocab_size": 50257, "sequence_length": 2048)";
  const std::string text = fmt::format(
      R"({{"model": {{"num_layers": {}, "hidden_size": {}, "num_heads": {}, {}}}, "data": {{"train": [{{"path": "data"}}]}},
          "batch": {{"global": {}, "micro": 1}}, "parallel": {{"zero": {}}}, "optimizer": {{"lr": 1e-4}},
          "run": {{"steps": 1, "out": "runs/fit"}}}})",
      layers, 128 * layers, layers, shape, gpus, gpus > 1 ? 3 : 0);
  return parse_config(text, row.settings, "the family's config", gpus);
}

// Returns the largest number of layers that fits; 0 if one layer does not fit.
int64_t most_layers(const Machine& machine, const std::string& family, const FitRow& row, const Target& target,
                    int64_t gpus) {
  const auto fits = [&](int64_t layers) {
    const RunConfig config = family_config(family, row, layers, gpus);
    const MemoryPlan memory = plan_rank({config, target, gpus}).memory().arenas;
    if (memory.total() > target.bytes_of_rank()) return false;
    HostMemoryUse on_host;
    for (int64_t rank = 0; rank < std::min(gpus, machine.cluster.gpus_per_node); ++rank)
      on_host.add(memory.host_memory());
    return (target.host_bytes == 0 || on_host.total() <= target.host_bytes) &&
           missing_on_drives(memory, machine, gpus) == 0;
  };
  constexpr int64_t beyond = 1024;
  int64_t low = 0, high = beyond;  // low fits, high does not
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

// Returns why the device cannot train any model of the family with these settings; empty if it can.
std::string refusal_of(const std::string& family, const FitRow& row, const Target& target, int64_t gpus) {
  try {
    require_target(family_config(family, row, 1, gpus), target, ExitCode::usage);
    return {};
  } catch (const Error& error) {
    return first_line(error);
  }
}

StudyPoint fit_of(const Machine& machine, const std::string& family, const FitRow& row, const Target& target,
                  int64_t gpus) {
  const auto with = [&](const std::string& layers, const std::string& hidden) {
    std::vector<std::string> values = row.values;
    values.insert(values.end(), {layers, hidden});
    return values;
  };
  if (const std::string refused = refusal_of(family, row, target, gpus); !refused.empty())
    return {.values = with("-", "-"), .gpus = gpus, .refused = refused};
  const int64_t layers = most_layers(machine, family, row, target, gpus);
  const std::vector<std::string> named = with(fmt::format("{}", layers), fmt::format("{}", 128 * layers));
  if (layers == 0) return {.values = named, .gpus = gpus, .refused = "not one layer of 128 features fits"};
  return point_of(named, machine, gpus, 0, [&] { return family_config(family, row, layers, gpus); });
}

// Returns whether "ffn" may pay in a model as large as that of the last point.
bool ffn_may_pay(const Study& study, const FitOptions& options, const FitRow& row) {
  const StudyPoint& last = study.points.back();
  if (!last.refused.empty()) return false;
  const int64_t layers = std::stoll(last.values[last.values.size() - 2]);
  return attention_outweighs_ffn(family_config(options.family, row, layers, options.gpus).model);
}

// The rows of one optimizer.
void add_fits(Study& study, const Machine& machine, const FitOptions& options, const std::string& optimizer,
              const Target& target) {
  const auto& [family, optimizers, overrides, gpus] = options;
  for (const Precision& precision : precisions) {
    if (precision.name == "fp16" && target.bf16_products) continue;  // needs the same memory as bf16
    for (const std::string_view recompute : recomputations) {
      FitRow row{.values = {optimizer, std::string(precision.name), std::string(recompute)},
                 .settings = joined(
                     overrides, {"optimizer.type=" + optimizer, fmt::format("precision.compute={}", precision.compute),
                                 fmt::format("memory.recompute={}", recompute)})};
      if (!precision.more.empty()) row.settings.emplace_back(precision.more);
      if (recompute == "ffn" && !ffn_may_pay(study, options, row)) continue;
      // A precision that the device does not have gets one refused point instead of one for each recomputation.
      const bool refused = !refusal_of(family, row, target, gpus).empty();
      if (refused) row.values.back() = "-";
      study.points.push_back(fit_of(machine, family, row, target, gpus));
      if (refused) break;
    }
  }
}

// Returns a study without points.
Study fit_study(const Machine& machine, const std::string& family, int64_t gpus, const Target& target) {
  Study study{.kind = Study::Kind::fit,
              .machine = machine_name(machine),
              .origin = step_origin(machine),
              .error = expected_error(machine, gpus > 1 ? 3 : 0)};
  study.title = fmt::format("largest {} models on {} device{}", family, gpus, gpus > 1 ? "s" : "");
  study.note = fmt::format("heads of 128, as many as layers; micro-batches of one sequence of {} tokens{}",
                           family == "llama" ? 4096 : 2048, gpus > 1 ? "; ZeRO 3" : "");
  set_memory(study, target);
  return study;
}

Target fit_target(const Machine& machine, const std::string& family, int64_t gpus) {
  return planned_target(machine, family_config(family, {}, 1, gpus).run.threads, gpus);
}

}  // namespace

Study fit_models(const Machine& machine, const FitOptions& options) {
  const Target target = fit_target(machine, options.family, options.gpus);
  Study study = fit_study(machine, options.family, options.gpus, target);
  if (!options.overrides.empty()) study.note += "; --set " + join(options.overrides, " --set ");
  study.axes = {"optimizer", "precision", "recompute", "layers", "hidden"};
  study.keys = {"optimizer", "precision", "recompute", "num_layers", "hidden_size"};
  for (const std::string& optimizer : options.optimizers) add_fits(study, machine, options, optimizer, target);
  return study;
}

Study fit_methods(const Machine& machine, const FitOptions& options) {
  const auto& [family, optimizers, more, gpus] = options;
  const Target target = fit_target(machine, family, gpus);
  const std::string compute = target.bf16_products ? "bf16" : "fp16";
  Study study = fit_study(machine, family, gpus, target);
  study.title += fmt::format(", AdamW in {}", compute);
  if (!more.empty()) study.note += "; --set " + join(more, " --set ");
  study.axes = {"method", "layers", "hidden"};
  study.keys = {"method", "num_layers", "hidden_size"};
  const std::vector<std::string> overrides = joined(more, {"precision.compute=" + compute});
  for (const SavingMethod& method : saving_methods) {
    if (!method.works_on(target)) continue;
    const std::vector<std::string> settings = method.on({});
    study.points.push_back(
        fit_of(machine, family, {{std::string(method.name)}, joined(overrides, settings)}, target, gpus));
    study.points.back().settings = settings;
  }
  return study;
}

}  // namespace gptrain::planner
