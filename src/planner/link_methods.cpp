#include "planner/link_methods.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "config/faults.h"
#include "config/load.h"
#include "config/parallelism.h"
#include "fit/plan_world.h"
#include "model/spec/spec.h"
#include "planner/layouts.h"
#include "planner/predict.h"
#include "planner/search.h"
#include "step/device.h"

namespace gptrain::inline planner {
namespace {

// A method and its settings, in the form of --set: {fifth} stands for a fifth of the run's steps, {nodes} for the
// number of nodes.
struct SendingMethod {
  std::string_view name;
  std::array<std::string_view, 5> settings;  // unused elements are empty
};
constexpr std::array<SendingMethod, 10> sending_methods = {{
    {"as given", {}},
    {"sums by node", {"comm.hierarchy=node"}},
    {"replicas on nodes", {"parallel.zero_node_copy=true"}},
    {"int8 weights", {"comm.weights=int8"}},
    {"int8 sums", {R"(comm.compression={"kind": "int8"})"}},
    {"int8 between nodes", {R"(comm.compression={"kind": "int8", "between": "nodes"})"}},
    {"powersgd, rank 2", {R"(comm.compression={"kind": "powersgd", "rank": 2})"}},
    {"powersgd, alternating", {R"(comm.compression={"kind": "powersgd", "rank": 2, "alternate": true})"}},
    {"1-bit Adam", {"optimizer.type=onebit-adam", "optimizer.freeze_step={fifth}", "optimizer.clip_norm=0"}},
    {"DiLoCo, 30 steps",
     {R"(parallel.local_steps={"islands": {nodes}, "every": 30, "outer": "nesterov"})", "checkpoint.every_steps=0",
      "run.validate_every_steps=0", "comm.compare_every_steps=0", "run.sample_every_steps=0"}},
}};

void replace(std::string& text, std::string_view what, int64_t number) {
  if (const size_t at = text.find(what); at != std::string::npos) text.replace(at, what.size(), std::to_string(number));
}

std::vector<std::string> settings_of(const SendingMethod& method, int64_t steps, int64_t nodes) {
  std::vector<std::string> settings;
  for (const std::string_view setting : method.settings) {
    if (setting.empty()) continue;
    std::string& text = settings.emplace_back(setting);
    replace(text, "{fifth}", std::max<int64_t>(1, steps / 5));
    replace(text, "{nodes}", nodes);
  }
  return settings;
}

// A network between nodes.
struct Network {
  std::string nics, rate;  // as shown
  Machine machine;
};

std::vector<Network> networks_of(const Machine& machine, const std::vector<int64_t>& nics) {
  constexpr std::array<double, 2> ethernet = {10, 1};  // Gbit/s
  std::vector<Network> networks;
  const auto add = [&](int64_t number, double gbit) {
    Network& network = networks.emplace_back(Network{fmt::format("{}", number), fmt::format("{:g}", gbit), machine});
    network.machine.cluster.nics_per_node = number;
    network.machine.cluster.nic_bytes_per_second = gbit / 8 * 1e9;
  };
  for (const int64_t number : nics) add(number, 8 * machine.cluster.nic_bytes_per_second / 1e9);
  for (const double gbit : ethernet) {
    add(1, gbit);
    networks.back().machine.cluster.nic_latency_seconds = 50e-6;
  }
  return networks;
}

// Returns the prediction with the mean time of the steps after the warm-up. THROWS Error if the config is refused.
LayoutResult mean_of_steps(const std::filesystem::path& file, std::span<const std::string> settings,
                           const Machine& machine, int64_t gpus) {
  const RunConfig config = load_config(file, settings, gpus);
  require_target(config, planned_target(machine, config.run.threads, gpus), ExitCode::usage);
  const auto predicted = [&](const auto& of) { return predict_layout(of, machine, layout_of(of, gpus), 0); };
  LayoutResult result = predicted(config);
  double seconds = result.step_seconds;
  RunConfig other = config;
  if (config.compression().alternate) {
    ++other.run.steps;  // the last step sums the other factors
    seconds = (seconds + predicted(other).step_seconds) / 2;
  } else if (LocalStepsConfig& local = other.parallel.local_steps; local.is_on() && local.every > 1) {
    const double share = 1 / static_cast<double>(local.every);
    local.every = 1;
    seconds = (1 - share) * seconds + share * predicted(other).step_seconds;
  }
  const double faster = result.step_seconds / seconds;
  result.step_seconds = seconds;
  result.gpu_hours /= faster;
  for (double* const rate : {&result.tokens_per_second, &result.mfu, &result.model_flops}) *rate *= faster;
  return result;
}

// Returns the fastest method of every network, as in "1 x 200 Gbit/s: int8 sums, 1.4 times as fast as given". `stride`:
// number of networks; the points of the first method come first.
std::string fastest_text(const Study& study, size_t stride) {
  std::vector<std::string> texts;
  for (size_t network = 0; network < stride; ++network) {
    const StudyPoint* best = nullptr;
    for (size_t i = network; i < study.points.size(); i += stride) {
      const StudyPoint& point = study.points[i];
      if (study.fits(point) && (best == nullptr || point.result->step_seconds < best->result->step_seconds))
        best = &point;
    }
    if (best == nullptr) continue;
    const StudyPoint& given = study.points[network];
    std::string& text =
        texts.emplace_back(fmt::format("{} x {} Gbit/s: {}", best->values[1], best->values[2], best->values[0]));
    if (best != &given && given.result)
      text += fmt::format(", {:.3g} times as fast as given", given.result->step_seconds / best->result->step_seconds);
  }
  return texts.empty() ? "no method fits" : "the fastest on each network: " + join(texts, "; ");
}

}  // namespace

Study compare_link_methods(const std::filesystem::path& file, std::span<const std::string> overrides,
                           const Machine& machine, int64_t gpus, const std::vector<int64_t>& nics) {
  const RunConfig config = load_config(file, overrides, gpus);
  Study study{.kind = Study::Kind::methods,
              .machine = machine_name(machine),
              .origin = step_origin(machine),
              .error = expected_error(machine, config.parallel.zero)};
  study.title = fmt::format("methods that send less between ranks, {} on {}", file.stem().string(),
                            format_counted(gpus, "device"));
  study.axes = {"method", "NICs", "Gbit/s of each"};
  study.keys = {"method", "nics_per_node", "nic_gbit_per_second"};
  const Target target = planned_target(machine, config.run.threads, gpus);
  study.device_bytes = target.bytes_of_rank();
  study.host_bytes = target.host_bytes;
  const int64_t nodes = std::max<int64_t>(2, gpus / std::max<int64_t>(1, machine.cluster.gpus_per_node));
  const std::vector<Network> networks = networks_of(machine, nics);
  for (const SendingMethod& method : sending_methods) {
    const std::vector<std::string> settings = settings_of(method, config.run.steps, nodes);
    std::vector<std::string> all(overrides.begin(), overrides.end());
    all.insert(all.end(), settings.begin(), settings.end());
    for (const Network& network : networks) {
      StudyPoint point{.values = {std::string(method.name), network.nics, network.rate}, .gpus = gpus};
      if (&network == &networks.front()) point.settings = settings;
      try {
        point.result = mean_of_steps(file, all, network.machine, gpus);
        point.parameters = make_spec(config.model).parameters();
      } catch (const Error& error) {
        const std::string text = error.what();
        point.refused = text.substr(0, text.find('\n'));
      }
      study.points.push_back(std::move(point));
    }
  }
  study.note = "step times are means over the steps after a method's warm-up; " + fastest_text(study, networks.size());
  return study;
}

}  // namespace gptrain::planner
