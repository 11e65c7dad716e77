#include "planner/candidates.h"

#include <algorithm>
#include <fmt/format.h>

#include "base/error.h"
#include "config/faults.h"
#include "config/parallelism.h"
#include "model/spec/spec.h"
#include "planner/predict.h"

namespace gptrain::inline planner {
namespace {

// Returns the bytes of a checkpoint with tensor size 1, whatever the config's layout. Other tensor sizes differ only in
// a few scales of block-wise quantized optimizer state.
int64_t bytes_of_checkpoints(RunConfig config) {
  config.parallel.tensor = 1;
  return checkpoint_bytes(make_spec(config.model), config);
}

class Collector {
 public:
  Collector(const SearchCase& search, const HeldKeys& held, LayoutEstimator& estimator, LayoutScores& scores,
            Misses& misses)
      : search_(search),
        memory_(search.config.memory),
        by_memory_(search.options.objective == Objective::memory),
        on_gpu_(search.target.kind == Target::Kind::gpu),
        held_(held),
        estimator_(estimator),
        scores_(scores),
        misses_(misses) {}

  Candidates collect() {
    for (const int64_t world : world_sizes()) {
      const std::vector<LayoutGroup> groups =
          layout_groups(search_.config, world, search_.machine.cluster.gpus_per_node);
      int64_t done = 0;
      for (const LayoutGroup& group : groups) {
        if (search_.options.progress) search_.options.progress("finding layouts", done++, std::ssize(groups));
        for_each_layout(search_.config, group, [&](const RunLayout& layout) {
          consider(layout);
          if (layout.recompute == RecomputeKind::block) consider_optimal(layout);
          consider_offload(layout);
        });
      }
    }
    if (found_.num_layouts == 0) throw Error(ExitCode::usage, why_no_layout());
    std::stable_sort(found_.fitting.begin(), found_.fitting.end(), [](const Candidate& a, const Candidate& b) {
      return std::pair(a.least_score, a.least_seconds) < std::pair(b.least_score, b.least_seconds);
    });
    return std::move(found_);
  }

 private:
  std::vector<int64_t> world_sizes() const {
    std::vector<int64_t> sizes{search_.options.gpus};
    if (search_.options.objective != Objective::cost) return sizes;
    while (sizes.back() % 2 == 0) sizes.push_back(sizes.back() / 2);
    return sizes;
  }

  Lines why_no_layout() const {
    const SearchOptions& options = search_.options;
    if (!options.refused.empty()) return options.refused;
    return Lines(
        "--gpus {}: no layout{} divides batch.global = {} and the model's heads and layers over {} devices; change one "
        "of these numbers",
        options.gpus, options.held.empty() ? "" : " with " + join(options.held, ", "), search_.config.batch.global,
        options.gpus);
  }

  int64_t lacks(const RunLayout& layout) {
    return estimator_.least_bytes(layout, search_.device_bytes).bytes - search_.device_bytes;
  }

  // Returns whether each data rank has its own pieces of all that is away.
  bool stores_own_pieces(const RunLayout& layout) const {
    if (layout.data == 1) return true;
    return (memory_.offload_parameters == StatePlace::none || cuts_weights(layout.zero)) &&
           (memory_.offload_gradients == StatePlace::none || cuts_gradients(layout.zero));
  }

  void consider(const RunLayout& layout) {
    if (!held_.agree_with(layout) || !stores_own_pieces(layout)) return;
    ++found_.num_layouts;
    const LeastBytes least = estimator_.least_bytes(layout, search_.device_bytes);
    if (least.bytes > search_.device_bytes) {
      ++found_.num_too_large;
      return misses_.add(layout, least.bytes - search_.device_bytes);
    }
    const double seconds = estimator_.least_seconds(layout);
    found_.fitting.push_back({.layout = layout,
                              .least = least,
                              .bytes = least.bytes,
                              .least_score = scores_.of(layout, seconds, least.bytes),
                              .least_seconds = seconds});
  }

  // "optimal" uses all free memory. The value helps only if saving everything does not fit, while recomputing all
  // blocks does (or, with copies to the host, offloading their inputs). "optimal" is tried for every layout if a
  // budget or a held value asks for it.
  void consider_optimal(RunLayout layout) {
    if (by_memory_) return;
    const bool is_asked_for = memory_.activation_budget > 0 || held_.has(recompute_key) ||
                              (held_.has(offload_key) && held_.own().offload == offload::optimal);
    const auto fits = [&](RecomputeKind recompute, auto offloaded) {
      layout.recompute = recompute;
      layout.offload = offloaded;
      return lacks(layout) <= 0;
    };
    if (!is_asked_for && fits(RecomputeKind::none, offload::none)) return;
    if (is_asked_for || fits(RecomputeKind::block, offload::none)) {
      layout.offload = offload::none;
      consider_made_to_fit(layout);
    }
    if (on_gpu_ && (is_asked_for || fits(RecomputeKind::block, offload::all))) {
      layout.offload = offload::optimal;
      consider_made_to_fit(layout);
    }
  }

  void consider_made_to_fit(RunLayout layout) {
    layout.recompute = RecomputeKind::optimal;
    if (!held_.agree_with(layout)) return;
    const int64_t budget = memory_.activation_budget;
    found_.uses_budget |= budget > 0;
    const int64_t record = budget == 0 ? 0 : estimator_.record_bytes(layout);
    if (record <= budget) return consider(layout);
    ++found_.num_layouts;  // counted, but no plan of it can keep to the budget
    found_.least_record = std::min(found_.least_record, record);
  }

  // Copies to the host help only if a layout does not fit without them, and fits with all of them. Copies are tried
  // for every layout if a held value asks for them.
  void consider_offload(RunLayout layout) {
    if (layout.recompute == RecomputeKind::every_nth || !on_gpu_) return;
    const bool is_held = held_.has(offload_key);
    if (!is_held && lacks(layout) <= 0) return;
    layout.offload = offload::all;
    if (const int64_t missing = is_held ? 0 : lacks(layout); missing > 0) {
      if (held_.agree_with(layout)) misses_.add_untried(layout, missing);
      return;
    }
    consider(layout);
    layout.offload = offload::hidden;
    // "hidden" never needs less memory than "all".
    if (is_held || (!by_memory_ && lacks(layout) <= 0)) consider(layout);
  }

  const SearchCase& search_;
  const MemoryConfig& memory_;
  bool by_memory_, on_gpu_;
  const HeldKeys& held_;
  LayoutEstimator& estimator_;
  LayoutScores& scores_;
  Misses& misses_;
  Candidates found_;
};

}  // namespace

ClassValues class_values(const RunLayout& layout) {
  return {layout.tensor,
          4 * layout.context + static_cast<int64_t>(layout.context_method),
          layout.expert * (int64_t{1} << 17) + layout.expert_tensor,
          layout.sequence ? 1 : 0,
          layout.pipeline,
          layout.pipeline > 1 ? 16 * (static_cast<int64_t>(layout.schedule) + 1) + layout.virtual_stages : 0,
          layout.is_balanced ? 1 : 0,
          static_cast<int64_t>(layout.rank_order),
          layout.zero,
          layout.micro,
          16 * static_cast<int64_t>(layout.recompute) + layout.recompute_interval,
          layout.offload.code()};
}

void Misses::add(const RunLayout& layout, int64_t missing) {
  least_.add(missing, layout);
  const ClassValues values = class_values(layout);
  for (size_t i = 0; i < num_classes; ++i) of_classes_[{i, values[i]}].add(missing, layout);
}

HeldKeys::HeldKeys(const SearchOptions& options, const RunLayout& own) : settings_(options.held), own_(own) {
  for (const std::string& held : settings_) values_.push_back(layout_value(held.substr(0, held.find('='))));
}

bool HeldKeys::has(std::string_view key) const {
  return std::any_of(settings_.begin(), settings_.end(),
                     [&](const std::string& held) { return held.substr(0, held.find('=')) == key; });
}

bool HeldKeys::agree_with(const RunLayout& layout) const {
  return std::all_of(values_.begin(), values_.end(), [&](LayoutValue value) { return value(layout) == value(own_); });
}

LayoutScores::LayoutScores(const RunConfig& config, const Machine& machine, Objective objective)
    : machine_(machine),
      objective_(objective),
      saves_asynchronously_(config.checkpoint.asynchronous),
      checkpoint_bytes_(bytes_of_checkpoints(config)) {}

// Returns the goodput if all nodes write equal parts of a checkpoint.
double LayoutScores::goodput(int64_t world_size) const {
  const ClusterProfile& cluster = machine_.cluster;
  const int64_t nodes = 1 + (world_size - 1) / cluster.gpus_per_node;
  CheckpointForecast even{.bytes = checkpoint_bytes_,
                          .rank_bytes = checkpoint_bytes_ / world_size,
                          .node_bytes = checkpoint_bytes_ / nodes};
  even.seconds = static_cast<double>(even.node_bytes) / cluster.storage_bytes_per_second;
  return forecast_step(machine_, {}, world_size, even, saves_asynchronously_).goodput;
}

double LayoutScores::of(const RunLayout& layout, double seconds, int64_t bytes) {
  switch (objective_) {
    case Objective::time:
      return seconds;
    case Objective::memory:
      return static_cast<double>(bytes);
    case Objective::cost:
      break;
  }
  const int64_t world = layout.world_size();
  if (!goodputs_.contains(world)) goodputs_[world] = goodput(world);
  return seconds * static_cast<double>(world) / goodputs_[world];
}

double LayoutScores::exact(const LayoutResult& result) {
  if (objective_ != Objective::cost) return of(result.layout, result.step_seconds, result.peak_bytes);
  return result.step_seconds * static_cast<double>(result.layout.world_size()) / result.goodput;
}

Candidates collect_candidates(const SearchCase& search, const HeldKeys& held, LayoutEstimator& estimator,
                              LayoutScores& scores, Misses& misses) {
  return Collector(search, held, estimator, scores, misses).collect();
}

}  // namespace gptrain::planner
