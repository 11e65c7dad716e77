#include "planner/faster_layout.h"

#include <algorithm>
#include <array>
#include <bit>
#include <fmt/format.h>
#include <utility>

#include "base/error.h"
#include "config/load.h"
#include "planner/layout_estimate.h"
#include "planner/layouts.h"
#include "planner/predict.h"

namespace gptrain::inline planner {
namespace {

constexpr int64_t most_stages = 16;
constexpr int64_t most_chunks = 8;                                     // chunks of a stage
constexpr std::array<int64_t, 8> micros = {1, 2, 3, 4, 6, 8, 12, 16};  // sequences per micro-batch
constexpr size_t most_estimated = 16;
constexpr int most_planned_quickly = 3;
constexpr int64_t most_actions_quickly = 200'000;  // actions of a layout that is planned in full

struct Tried {
  RunLayout layout;
  double seconds = 0;  // lower bound, then estimate
};

class QuickSearch {
 public:
  QuickSearch(const RunConfig& config, const Machine& machine, int64_t world_size, double enough)
      : config_(config),
        machine_(machine),
        target_(planned_target(machine, config.run.threads, world_size)),
        world_size_(world_size),
        enough_(enough),
        estimator_(config, machine, target_) {}

  std::optional<FasterLayout> run() {
    for (const LayoutGroup& group : layout_groups(config_, world_size_, machine_.cluster.gpus_per_node)) {
      const bool is_simple =
          std::has_single_bit(static_cast<uint64_t>(group.tensor)) && group.tensor <= machine_.cluster.gpus_per_node;
      const bool shares_alike =
          group.context == config_.parallel.context && group.context_method == config_.parallel.context_method &&
          group.expert == config_.parallel.expert && group.expert_tensor == config_.parallel.expert_tensor;
      if (is_simple && shares_alike && group.pipeline <= most_stages) try_group(group);
    }
    keep_fastest();
    for (Tried& tried : tried_) tried.seconds = estimator_.estimate(tried.layout).step_seconds;
    keep_fastest();
    return plan();
  }

 private:
  void try_group(const LayoutGroup& group) {
    const int64_t sequences = config_.batch.global / group.data;
    RunLayout layout = layout_of(group);
    layout.sequence = group.tensor > 1;
    for (const int64_t micro : micros) {
      if (sequences % micro != 0) continue;
      layout.micro = micro;
      layout.accumulation = sequences / layout.micro;
      for (const RecomputeKind kind :
           {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::ffn, RecomputeKind::block}) {
        if (kind == RecomputeKind::ffn && config_.memory.recompute != kind) continue;
        layout.recompute = kind;
        if (!with_derived_values(with_layout(config_, layout), world_size_)) continue;
        try_pipelines(layout);
      }
    }
  }

  void try_pipelines(RunLayout layout) {
    const bool has_stages = layout.pipeline > 1;
    layout.zero = layout.replicas() > 1 ? 1 : 0;
    for (const int64_t most = has_stages ? layout.zero : 3 * layout.zero; layout.zero <= most; ++layout.zero)
      consider(layout);
    if (!has_stages || config_.model.num_layers % layout.pipeline != 0) return;
    layout.zero = layout.replicas() > 1 ? 1 : 0;
    layout.virtual_stages = most_chunks;
    while (config_.model.num_layers / layout.pipeline % layout.virtual_stages != 0) --layout.virtual_stages;
    layout.schedule = PipelineOrder::interleaved;
    if (layout.virtual_stages > 1 && with_derived_values(with_layout(config_, layout), world_size_)) consider(layout);
  }

  void consider(const RunLayout& layout) {
    if (num_actions(layout) > most_actions_quickly) return;
    const int64_t device_bytes = target_.bytes_of_rank();
    if (estimator_.least_bytes(layout, device_bytes).bytes > device_bytes) return;
    tried_.push_back({layout, estimator_.least_seconds(layout)});
  }

  int64_t num_actions(const RunLayout& layout) const {
    return layout.accumulation * (4 * config_.model.num_layers + 8 * layout.pipeline * layout.virtual_stages);
  }

  // Drops layouts that are not fast enough, and all but the fastest of the others.
  void keep_fastest() {
    std::erase_if(tried_, [&](const Tried& tried) { return tried.seconds >= enough_; });
    std::stable_sort(tried_.begin(), tried_.end(),
                     [](const Tried& a, const Tried& b) { return a.seconds < b.seconds; });
    if (tried_.size() > most_estimated) tried_.resize(most_estimated);
  }

  // Plans the layouts with the best estimates until one fits and is fast enough.
  std::optional<FasterLayout> plan() const {
    int planned = 0;
    for (const Tried& tried : tried_) {
      if (planned++ == most_planned_quickly) break;
      try {
        const RunConfig config = checked_layout(config_, tried.layout);
        const LayoutResult result = predict_layout(config, machine_, tried.layout, 0);
        const bool fits = result.peak_bytes <= target_.bytes_of_rank() &&
                          (target_.host_bytes == 0 || result.host_bytes <= target_.host_bytes);
        if (fits && result.step_seconds < enough_) return FasterLayout{tried.layout, result.step_seconds};
      } catch (const Error&) {
        continue;  // a rule of configs forbids the layout
      }
    }
    return std::nullopt;
  }

  const RunConfig& config_;
  const Machine& machine_;
  const Target target_;
  const int64_t world_size_;
  const double enough_;  // seconds; only shorter steps count
  LayoutEstimator estimator_;
  std::vector<Tried> tried_;
};

}  // namespace

std::optional<FasterLayout> find_faster_layout(const RunConfig& config, const Machine& machine, int64_t world_size,
                                               double step_seconds) {
  // Estimates do not know disks.
  if (config.memory.keeps_state_away()) return std::nullopt;
  // Each plan of an estimate has the tensors of three layers.
  constexpr int64_t most_experts_quickly = 512;
  if (config.model.moe.experts > most_experts_quickly) return std::nullopt;
  return QuickSearch(config, machine, world_size, step_seconds / (1 + slow_layout_share)).run();
}

std::vector<std::string> settings_between(const RunLayout& own, const RunLayout& other) {
  std::vector<std::string> settings;
  const auto set = [&](std::string_view key, bool differs, const std::string& value) {
    if (differs) settings.push_back(fmt::format("{}={}", key, value));
  };
  const auto set_number = [&](std::string_view key, int64_t from, int64_t to, int64_t usual) {
    set(key, from != to, to == usual ? "null" : std::to_string(to));
  };
  const auto word = [](auto names, auto value) { return std::string(names[value]); };
  set("parallel.tensor", own.tensor != other.tensor, std::to_string(other.tensor));
  set("parallel.context", own.context != other.context, std::to_string(other.context));
  set(context_method_key, own.context_method != other.context_method,
      other.context == 1 ? "null" : std::string(context_method_names[other.context_method]));
  set_number("parallel.expert", own.expert, other.expert, 1);
  set_number("parallel.expert_tensor", own.expert_tensor, other.expert_tensor, 1);
  set("parallel.sequence", own.sequence != other.sequence, other.sequence ? "true" : "null");
  set("parallel.pipeline", own.pipeline != other.pipeline, std::to_string(other.pipeline));
  set(schedule_key, own.schedule != other.schedule,
      other.schedule == PipelineOrder::one_f_one_b ? "null" : word(pipeline_order_names, other.schedule));
  set_number("parallel.virtual_stages", own.virtual_stages, other.virtual_stages, 1);
  set("parallel.layers_per_stage", own.is_balanced && !other.is_balanced, "null");
  set(rank_order_key, own.rank_order != other.rank_order,
      other.rank_order == RankOrder{} ? "null" : word(rank_order_names, other.rank_order));
  set("parallel.zero", own.zero != other.zero, std::to_string(other.zero));
  set("batch.micro", own.micro != other.micro, std::to_string(other.micro));
  set(recompute_key, own.recompute != other.recompute, value_text(other, recompute_key));
  set_number("memory.recompute_interval", own.recompute_interval, other.recompute_interval, 0);
  set(budget_key, own.recompute == RecomputeKind::optimal && other.recompute != own.recompute, "null");
  set(offload_key, own.offload != other.offload, offload_name(other.offload));
  return settings;
}

}  // namespace gptrain::planner
