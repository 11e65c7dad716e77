#include "planner/search.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/faults.h"
#include "model/spec/spec.h"
#include "planner/layout_estimate.h"
#include "planner/layouts.h"
#include "report/run_speed.h"
#include "train/device.h"

namespace gptrain {
namespace {

constexpr int64_t most_played = 400;             // layouts whose passes are played
constexpr int64_t most_passes = 16'000'000;      // that these have together
constexpr int64_t most_planned = 40;             // layouts that are planned whole, where not more are asked for
constexpr int64_t most_actions = 6'000'000;      // that these have together
constexpr int most_fitting = 4;                  // layouts of a class that are estimated
constexpr int most_tries = 24;                   // whose memory is planned for that
constexpr size_t num_classes = 9;

// A layout's values of the keys that a search names, in the order of layout_keys.
std::array<int64_t, num_classes> class_values(const RunLayout& layout) {
  return {layout.tensor,
          layout.sequence ? 1 : 0,
          layout.pipeline,
          layout.pipeline > 1 ? 16 * (static_cast<int64_t>(layout.schedule) + 1) + layout.virtual_stages : 0,
          layout.is_balanced ? 1 : 0,
          static_cast<int64_t>(layout.rank_order),
          layout.zero,
          layout.micro,
          16 * static_cast<int64_t>(layout.recompute) + layout.recompute_interval};
}

int64_t num_passes(const RunLayout& layout) {
  return 3 * layout.pipeline * layout.virtual_stages * layout.accumulation;
}

// About as many as all stages of its plan have.
int64_t num_actions(const RunConfig& config, const RunLayout& layout) {
  return layout.accumulation * (4 * config.model.num_layers + 8 * layout.pipeline * layout.virtual_stages);
}

struct Candidate {
  RunLayout layout;
  LeastBytes least;
  double least_score = 0, least_seconds = 0;
  std::optional<LayoutResult> estimate = {};
  double score = 0;  // of the estimate
};

// The least that is missing where a layout does not fit.
struct Miss {
  int64_t bytes = std::numeric_limits<int64_t>::max();
  RunLayout layout;

  void add(int64_t missing, const RunLayout& of) {
    if (missing < bytes) *this = {missing, of};
  }
};

class Search {
 public:
  Search(const RunConfig& config, const Machine& machine, const SearchOptions& options)
      : config_(config),
        machine_(machine),
        options_(options),
        target_(planned_target(machine, config, options.gpus)),
        room_(target_.bytes_of_rank()),
        checkpoint_bytes_(gptrain::checkpoint_bytes(make_spec(config.model), config)),
        estimator_(config, machine, target_),
        own_(layout_of(config, options.gpus)) {
    for (const std::string& held : options.held) held_.push_back(layout_value(held.substr(0, held.find('='))));
    found_.machine = machine_name(machine);
    found_.held = options.held;
    found_.error = machine.device.error;
    found_.objective = objective_names[static_cast<size_t>(options.objective)];
    found_.gpus = options.gpus;
    found_.room_bytes = room_;
  }

  LayoutSearch run() {
    require_target(config_, target_, ExitCode::usage);
    collect();
    play();
    plan_best();
    if (exact_.empty()) {
      found_.least_missing_bytes = miss_.bytes;
      found_.least_missing = miss_.layout;
      return std::move(found_);
    }
    rank();
    explain();
    return std::move(found_);
  }

 private:
  // With a checkpoint of which all nodes write as much.
  double goodput(int64_t world_size) const {
    const ClusterProfile& cluster = machine_.cluster;
    const int64_t nodes = 1 + (world_size - 1) / cluster.gpus_per_node;
    CheckpointForecast even{.bytes = checkpoint_bytes_,
                            .rank_bytes = checkpoint_bytes_ / world_size,
                            .node_bytes = checkpoint_bytes_ / nodes};
    even.seconds = static_cast<double>(even.node_bytes) / cluster.storage_bytes_per_second;
    return forecast_step(machine_, {}, world_size, even, config_.checkpoint.asynchronous).goodput;
  }

  double score(const RunLayout& layout, double seconds, int64_t bytes) {
    switch (options_.objective) {
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

  // Of a plan, whose own goodput is known.
  double exact_score(const LayoutResult& result) {
    if (options_.objective != Objective::cost) return score(result.layout, result.step_seconds, result.peak_bytes);
    return result.step_seconds * static_cast<double>(result.layout.world_size()) / result.goodput;
  }

  std::vector<int64_t> world_sizes() const {
    std::vector<int64_t> sizes{options_.gpus};
    if (options_.objective != Objective::cost) return sizes;
    while (sizes.back() % 2 == 0) sizes.push_back(sizes.back() / 2);
    return sizes;
  }

  void add_miss(const RunLayout& layout, int64_t missing) {
    ++found_.num_too_large;
    miss_.add(missing, layout);
    const auto values = class_values(layout);
    for (size_t i = 0; i < num_classes; ++i) misses_[{i, values[i]}].add(missing, layout);
  }

  bool has_held_values(const RunLayout& layout) const {
    return std::all_of(held_.begin(), held_.end(), [&](LayoutValue value) { return value(layout) == value(own_); });
  }

  // All layouts, by the bounds of their memory and time.
  void collect() {
    for (const int64_t world : world_sizes()) {
      for (const LayoutGroup& group : layout_groups(config_, world, machine_.cluster.gpus_per_node)) {
        for_each_layout(config_, group, [&](const RunLayout& layout) {
          if (!has_held_values(layout)) return;
          ++found_.num_layouts;
          const LeastBytes least = estimator_.least_bytes(layout, room_);
          if (least.bytes > room_) return add_miss(layout, least.bytes - room_);
          const double seconds = estimator_.least_seconds(layout);
          candidates_.push_back({layout, least, score(layout, seconds, least.bytes), seconds});
        });
      }
    }
    if (found_.num_layouts == 0)
      throw Error(ExitCode::usage,
                  "--gpus {}: no layout divides batch.global = {} and the model's heads and layers over so many{}",
                  options_.gpus, config_.batch.global,
                  options_.held.empty() ? "" : " and is one of those searched, with " + join(options_.held, ", "));
    std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return std::pair(a.least_score, a.least_seconds) < std::pair(b.least_score, b.least_seconds);
    });
  }

  void estimate(Candidate& candidate) {
    if (candidate.estimate) return;
    candidate.estimate = estimator_.estimate(candidate.layout);
    candidate.score = score(candidate.layout, candidate.estimate->step_seconds, candidate.least.bytes);
    ++found_.num_played;
  }

  // Estimates those whose bounds leave them a chance to be among the best.
  void play() {
    std::multiset<double> best;
    int64_t passes = 0;
    const auto top = static_cast<size_t>(options_.top);
    for (size_t i = 0; i < candidates_.size() && static_cast<int64_t>(i) < most_played && passes < most_passes; ++i) {
      Candidate& candidate = candidates_[i];
      const double limit = best.size() < top ? INFINITY : *best.rbegin() * (1 + estimate_error);
      if (candidate.least_score > limit) break;
      estimate(candidate);
      passes += num_passes(candidate.layout);
      best.insert(candidate.score);
      if (best.size() > top) best.erase(std::prev(best.end()));
    }
    std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      if (a.estimate.has_value() != b.estimate.has_value()) return a.estimate.has_value();
      return a.estimate && std::pair(a.score, a.estimate->step_seconds) < std::pair(b.score, b.estimate->step_seconds);
    });
  }

  // How much more the layout takes than there is, by plans of the ranks that take most: of the stage that the bound
  // names, the first and the last one. 0: all of these fit.
  int64_t missing(const RunConfig& config, const Candidate& candidate) const {
    const Mesh mesh = make_mesh(config, candidate.layout.world_size());
    const auto last = static_cast<int32_t>(candidate.layout.pipeline) - 1;
    for (const int32_t stage : std::set<int32_t>{candidate.least.stage, 0, last}) {
      MeshPoint point;
      point[MeshAxis::pipeline] = stage;
      const StepPlan plan = plan_step(config, target_, mesh.world_size(), mesh.rank_of(point));
      const int64_t bytes = plan.memory().arenas.total();
      if (bytes > room_) return bytes - room_;
    }
    return 0;
  }

  // As a run would have it; none where a rule of the config forbids it.
  std::optional<RunConfig> checked(const RunLayout& layout) const {
    try {
      return checked_layout(config_, layout);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // Plans the best whole, as long as they are few and small enough.
  void plan_best() {
    int64_t actions = 0;
    for (Candidate& candidate : candidates_) {
      if (!candidate.estimate && !exact_.empty()) break;
      if (std::ssize(exact_) >= std::max(options_.top, most_planned)) break;
      const int64_t more = num_actions(config_, candidate.layout);
      if (!exact_.empty() && actions + more > most_actions) break;
      const std::optional<RunConfig> config = checked(candidate.layout);
      planned_.insert(&candidate);
      if (!config) continue;
      if (const int64_t lacks = missing(*config, candidate); lacks > 0) {
        add_miss(candidate.layout, lacks);
        continue;
      }
      LayoutResult result = predict_layout(*config, machine_, candidate.layout, options_.price);
      actions += more;
      if (result.peak_bytes > room_) {
        add_miss(candidate.layout, result.peak_bytes - room_);
        continue;
      }
      exact_.push_back(std::move(result));
    }
  }

  void rank() {
    found_.num_exact = std::ssize(exact_);
    std::stable_sort(exact_.begin(), exact_.end(), [&](const LayoutResult& a, const LayoutResult& b) {
      return std::pair(exact_score(a), a.step_seconds) < std::pair(exact_score(b), b.step_seconds);
    });
    found_.best.assign(exact_.begin(), exact_.begin() + std::min(options_.top, static_cast<int64_t>(exact_.size())));
    const LayoutResult& best = exact_.front();
    const double limit = exact_score(best) * (options_.objective == Objective::memory ? 1 : 1 + estimate_error);
    for (const Candidate& candidate : candidates_) {
      if (planned_.contains(&candidate)) continue;
      const double at_best = candidate.estimate ? candidate.score : candidate.least_score;
      if (at_best < limit) ++found_.num_within_error;
      if (candidate.estimate && std::ssize(found_.best) < options_.top) found_.best.push_back(*candidate.estimate);
    }
  }

  // Why each value of each key that the best layout does not have lost.
  void explain() {
    const auto winner = class_values(found_.best.front().layout);
    std::set<std::pair<size_t, int64_t>> values;
    for (const auto& [value, miss] : misses_) values.insert(value);
    for (const Candidate& candidate : candidates_) {
      const auto own = class_values(candidate.layout);
      for (size_t i = 0; i < num_classes; ++i) values.insert({i, own[i]});
    }
    for (const auto& value : values)
      if (value.second != winner[value.first]) explain_class(value.first, value.second);
  }

  void explain_class(size_t key, int64_t value) {
    const auto is_of_class = [&](const RunLayout& layout) { return class_values(layout)[key] == value; };
    LostClass lost;
    const auto name = [&](const RunLayout& layout) { std::tie(lost.key, lost.value) = layout_keys(layout)[key]; };
    for (const LayoutResult& result : exact_) {
      if (!is_of_class(result.layout)) continue;
      lost.fits = true;
      lost.best = result;
      name(result.layout);
      found_.lost.push_back(std::move(lost));
      return;
    }
    Candidate* best = nullptr;
    int fitting = 0, tries = 0;
    int64_t above_bound = 0;  // the least that a plan of the class has been above its bound, where it did not fit
    for (Candidate& candidate : candidates_) {
      if (fitting == most_fitting || tries == most_tries) break;
      if (!is_of_class(candidate.layout) || planned_.contains(&candidate)) continue;
      if (candidate.least.bytes + above_bound > room_) {
        lost.all_tried = false;
        continue;
      }
      const std::optional<RunConfig> config = checked(candidate.layout);
      if (!config) continue;
      ++tries;
      if (const int64_t lacks = missing(*config, candidate); lacks > 0) {
        add_miss(candidate.layout, lacks);
        const int64_t above = room_ + lacks - candidate.least.bytes;
        above_bound = above_bound == 0 ? above : std::min(above_bound, above);
        continue;
      }
      ++fitting;
      estimate(candidate);
      if (best == nullptr || candidate.score < best->score) best = &candidate;
    }
    if (tries == most_tries) lost.all_tried = false;
    if (best != nullptr) {
      lost.fits = true;
      lost.best = *best->estimate;
      name(best->layout);
    } else {
      const auto miss = misses_.find({key, value});
      if (miss == misses_.end()) return;  // a rule of the config forbids all
      lost.missing_bytes = miss->second.bytes;
      name(miss->second.layout);
    }
    found_.lost.push_back(std::move(lost));
  }

  const RunConfig& config_;
  const Machine& machine_;
  const SearchOptions& options_;
  Target target_;
  int64_t room_;
  int64_t checkpoint_bytes_;
  LayoutEstimator estimator_;
  RunLayout own_;                  // the config's
  std::vector<LayoutValue> held_;  // in which all layouts are like it
  LayoutSearch found_;
  std::map<int64_t, double> goodputs_;  // by number of devices
  std::vector<Candidate> candidates_;   // that fit by their bounds, the most promising first
  std::set<const Candidate*> planned_;
  std::vector<LayoutResult> exact_;
  Miss miss_;
  std::map<std::pair<size_t, int64_t>, Miss> misses_;  // by key and value
};

}  // namespace

LayoutResult layout_result(const RunConfig& config, const Target& target, const WorldPlan& plan,
                           const StepForecast& forecast, const RunLayout& layout, double price) {
  const RunSpeed speed = run_speed(config, target, plan.ops, layout.world_size(), forecast.step_seconds);
  LayoutResult result;
  result.layout = layout;
  result.is_exact = true;
  result.step_seconds = forecast.step_seconds;
  result.bubble_seconds = forecast.bubble_seconds;
  result.exposed_seconds = forecast.exposed_seconds;
  result.peak_bytes = plan.largest.arenas.total();
  result.tokens_per_second = speed.tokens_per_second;
  result.mfu = speed.mfu;
  result.model_flops = speed.model_flops_per_gpu * static_cast<double>(layout.world_size());
  result.gpu_hours = speed.gpu_hours;
  result.goodput = forecast.goodput;
  result.cost = price * speed.gpu_hours / result.goodput;
  return result;
}

LayoutResult predict_layout(const RunConfig& config, const Machine& machine, const RunLayout& layout, double price) {
  const Prediction prediction = predict_run(config, machine, layout.world_size());
  return layout_result(config, planned_target(machine, config, layout.world_size()), prediction.plan,
                       prediction.forecast, layout, price);
}

LayoutSearch search_layouts(const RunConfig& config, const Machine& machine, const SearchOptions& options) {
  return Search(config, machine, options).run();
}

}  // namespace gptrain
