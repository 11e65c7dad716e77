#include "planner/search.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fp8.h"
#include "config/faults.h"
#include "fit/choose_step.h"
#include "fit/plan_world.h"
#include "fit/saving_methods.h"
#include "planner/candidates.h"
#include "planner/layout_estimate.h"
#include "planner/layouts.h"
#include "planner/nearest_layout.h"
#include "step/device.h"

namespace gptrain::inline planner {
namespace {

constexpr int64_t most_played = 400;         // layouts whose passes are simulated
constexpr int64_t most_passes = 16'000'000;  // passes of these layouts together
constexpr int64_t most_planned = 40;         // layouts planned in full, unless the result must name more
constexpr int64_t most_actions = 6'000'000;  // actions of these layouts together
constexpr int most_over_budget = 60;         // planned layouts refused because their activations exceed the budget
constexpr int most_fitting = 4;              // layouts estimated for each class
constexpr int most_tries = 24;               // layouts whose memory is planned for each class, to find those that fit
constexpr int most_peaks_planned = 8;        // ranks planned for each class, to find its smallest peak
constexpr double most_host_weight = 0.1;     // see score_with_host_memory

int64_t num_passes(const RunLayout& layout) {
  return 3 * layout.pipeline * layout.virtual_stages * layout.accumulation;
}

int64_t num_actions(const StepConfig& config, const RunLayout& layout) {
  return layout.accumulation * (4 * config.model.num_layers + 8 * layout.pipeline * layout.virtual_stages);
}

class Search {
 public:
  Search(const RunConfig& config, const Machine& machine, const SearchOptions& options)
      : case_{config, machine, options, planned_target(machine, config.run.threads, options.gpus), 0},
        estimator_(config, machine, case_.target),
        scores_(config, machine, options.objective),
        held_(options, layout_of(config, options.gpus)) {
    case_.device_bytes = case_.target.bytes_of_rank();
    found_.machine = machine_name(machine);
    found_.held = options.held;
    found_.origin = step_origin(machine);
    found_.error = expected_error(machine, config.parallel.zero);
    found_.objective = objective_names[options.objective];
    found_.gpus = options.gpus;
    found_.device_bytes = case_.device_bytes;
    found_.node_host_bytes = case_.target.host_bytes;
  }

  LayoutSearch run() {
    const bool by_memory = case_.options.objective == Objective::memory;
    require_target(case_.config, case_.target, ExitCode::usage);
    require_tried_values(held_.own(), case_.options.held, by_memory, case_.target.kind == Target::Kind::gpu);
    const Candidates collected = collect();
    if (by_memory) {
      plan_smallest();
    } else {
      play();
      plan_best();
    }
    if (candidates_.empty() && found_.num_too_large == 0 &&
        collected.least_record < std::numeric_limits<int64_t>::max())
      throw Error(ExitCode::usage, "{} = {}: too small: no layout in this search stores less per block than {} bytes",
                  budget_key, case_.config.memory.activation_budget, collected.least_record);
    if (exact_.empty() && !over_budget_.empty())
      throw Error(ExitCode::usage, "no planned layout stays within the budget; the fastest one: {}", over_budget_);
    if (exact_.empty()) {
      name_nearest();
      return std::move(found_);
    }
    rank();
    name_published();
    try_overlap();
    explain();
    return std::move(found_);
  }

 private:
  void show(std::string_view what, int64_t done, int64_t most) const {
    if (case_.options.progress) case_.options.progress(what, done, most);
  }

  Candidates collect() {
    Candidates collected = collect_candidates(case_, held_, estimator_, scores_, misses_);
    candidates_ = std::move(collected.fitting);
    found_.num_layouts = collected.num_layouts;
    found_.num_too_large = collected.num_too_large;
    if (collected.uses_budget) found_.activation_budget = case_.config.memory.activation_budget;
    return collected;
  }

  void name_nearest() {
    const Miss& least = misses_.least();
    RunLayout recomputing = least.layout;
    recomputing.recompute = RecomputeKind::block;
    const Miss nearest = nearest_of(case_.config, case_.machine, case_.device_bytes, least,
                                    held_.agree_with(recomputing) ? recomputing : least.layout);
    found_.least_missing_bytes = nearest.bytes;
    found_.least_missing = nearest.layout;
    found_.least_missing_is_exact = nearest.is_exact;
    found_.untried = untried_methods(case_.config, case_.config.memory, case_.target);
    found_.untried_host = has_untried_host(case_.config, case_.config.memory, case_.target);
  }

  void estimate(Candidate& candidate) {
    if (candidate.estimate) return;
    candidate.estimate = estimator_.estimate(candidate.layout);
    candidate.score = scores_.of(candidate.layout, candidate.estimate->step_seconds, candidate.least.bytes);
    ++found_.num_played;
  }

  // Estimates the layouts that may be among the best by their bounds, and sorts them.
  void play() {
    std::multiset<double> best;
    int64_t passes = 0;
    const auto top = static_cast<size_t>(case_.options.top);
    for (size_t i = 0; i < candidates_.size() && static_cast<int64_t>(i) < most_played && passes < most_passes; ++i) {
      Candidate& candidate = candidates_[i];
      show("simulating pass by pass", static_cast<int64_t>(i), std::min(most_played, std::ssize(candidates_)));
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

  // Runs `plan`. Returns false if the plan exceeds the config's budget of activations.
  bool keeps_budget(const Candidate& candidate, const std::function<void()>& plan) {
    const bool has_budget =
        candidate.layout.recompute == RecomputeKind::optimal && case_.config.memory.activation_budget > 0;
    if (!has_budget) {
      plan();
      return true;
    }
    try {
      plan();
      return true;
    } catch (const Error& error) {
      if (error.code() != ExitCode::usage) throw;
      if (over_budget_.empty()) over_budget_ = error.what();
      return false;
    }
  }

  // Returns the missing bytes of the layout, from plans of the stages that need the most: the one named by the bound,
  // the first and the last. Returns 0 if these fit.
  int64_t missing(const RunConfig& config, const Candidate& candidate) const {
    const Mesh mesh = make_mesh(config, candidate.layout.world_size());
    const auto last = static_cast<int32_t>(candidate.layout.pipeline) - 1;
    for (const int32_t stage : std::set<int32_t>{candidate.least.stage, 0, last}) {
      const PlanCase run{config, case_.target, mesh.world_size()};
      const StepPlan plan = plan_step(run, smallest_step(run, stage), mesh.first_rank_of_stage(stage));
      const int64_t bytes = plan.memory().arenas.total();
      if (bytes > case_.device_bytes) return bytes - case_.device_bytes;
    }
    return 0;
  }

  // Returns the layout's config as a run would have it; nothing if a rule of configs forbids it.
  std::optional<RunConfig> checked(const RunLayout& layout) const {
    try {
      return checked_layout(case_.config, layout);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // Plans the best layouts in full, up to limits of their number and size.
  void plan_best() {
    int64_t actions = 0;
    int num_over_budget = 0;
    for (Candidate& candidate : candidates_) {
      if (!candidate.estimate && !exact_.empty()) break;
      if (std::ssize(exact_) >= std::max(case_.options.top, most_planned)) break;
      show("planning in full", std::ssize(exact_), std::max(case_.options.top, most_planned));
      const int64_t more = num_actions(case_.config, candidate.layout);
      if (!exact_.empty() && actions + more > most_actions) break;
      const std::optional<RunConfig> config = checked(candidate.layout);
      planned_.insert(&candidate);
      if (!config) continue;
      // "optimal" is made to fit, and planning it takes as long as several other plans: skips the check.
      const bool made_to_fit = candidate.layout.recompute == RecomputeKind::optimal;
      if (const int64_t lacks = made_to_fit ? 0 : missing(*config, candidate); lacks > 0) {
        misses_.add(candidate.layout, lacks);
        continue;
      }
      LayoutResult result;
      actions += more;
      if (!keeps_budget(candidate, [&] {
            result = predict_layout(*config, case_.machine, candidate.layout, case_.options.price);
          })) {
        if (++num_over_budget == most_over_budget) break;
        continue;
      }
      if (result.peak_bytes > case_.device_bytes) {
        misses_.add(candidate.layout, result.peak_bytes - case_.device_bytes);
        continue;
      }
      if (const int64_t host = case_.target.host_bytes; host > 0 && result.host_bytes > host) {
        misses_.add(candidate.layout, result.host_bytes - host);
        continue;
      }
      if (result.lacks_on_drives > 0) {
        misses_.add(candidate.layout, result.lacks_on_drives);
        continue;
      }
      exact_.push_back(std::move(result));
    }
  }

  // Raises the candidate's bound by a plan of the rank that the bound names. Returns false if a rule of configs forbids
  // the layout.
  bool plan_a_rank(Candidate& candidate) const {
    const std::optional<RunConfig> config = checked(candidate.layout);
    if (!config) return false;
    const Mesh mesh = make_mesh(*config, candidate.layout.world_size());
    const int64_t rank = mesh.first_rank_of_stage(candidate.least.stage);
    const StepPlan plan = plan_rank({*config, case_.target, mesh.world_size()}, rank);
    candidate.bytes = std::max(candidate.bytes, plan.memory().arenas.total());
    candidate.bytes_known = BytesKnown::of_a_rank;
    return true;
  }

  // Makes the candidate's bytes exact, unless they exceed `enough`.
  void plan_ranks(Candidate& candidate, int64_t enough) {
    RunLayout alike = candidate.layout;  // stands for both rank orders, whose ranks are equally large
    alike.rank_order = {};
    const auto key = std::pair(class_values(alike), alike.data);
    const auto known = planned_peaks_.find(key);
    candidate.bytes = known != planned_peaks_.end()
                          ? known->second
                          : largest_rank_bytes({checked_layout(case_.config, candidate.layout), case_.target,
                                                candidate.layout.world_size()},
                                               candidate.least.stage, enough)
                                .on_device;
    ++found_.num_peaks_planned;
    if (candidate.bytes > enough) return;
    planned_peaks_[key] = candidate.bytes;
    candidate.bytes_known = BytesKnown::exact;
  }

  // Returns the layouts with the smallest peaks. Always plans the layout with the smallest bound next, until enough
  // peaks are exact and no bound is below them: then no other layout can have a smaller peak.
  std::vector<Candidate*> smallest() {
    const auto is_behind = [](const Candidate* a, const Candidate* b) {
      return std::pair(a->bytes, a->least_seconds) > std::pair(b->bytes, b->least_seconds);
    };
    std::priority_queue<Candidate*, std::vector<Candidate*>, decltype(is_behind)> left(is_behind);
    for (Candidate& candidate : candidates_) left.push(&candidate);
    const auto top = static_cast<size_t>(case_.options.top);
    std::multiset<int64_t> peaks;  // smallest exact peaks so far
    std::vector<Candidate*> found;
    while (!left.empty()) {
      Candidate& candidate = *left.top();
      show("planning memory", found_.num_peaks_planned, std::ssize(candidates_));
      if (found.size() >= top && candidate.bytes > found.back()->bytes) break;
      left.pop();
      if (candidate.bytes > case_.device_bytes) {
        misses_.add(candidate.layout, candidate.bytes - case_.device_bytes);
      } else if (candidate.bytes_known == BytesKnown::exact) {
        found.push_back(&candidate);
      } else if (candidate.bytes_known == BytesKnown::of_a_rank) {
        plan_ranks(candidate, peaks.size() < top ? case_.device_bytes : *peaks.rbegin());
        if (candidate.bytes_known == BytesKnown::exact) peaks.insert(candidate.bytes);
        if (peaks.size() > top) peaks.erase(std::prev(peaks.end()));
        left.push(&candidate);
      } else if (plan_a_rank(candidate)) {
        left.push(&candidate);
      }
    }
    return found;
  }

  // Simulates only the layouts with the smallest peaks; if that is too much work, only those that share the smallest
  // peak.
  void plan_smallest() {
    int64_t actions = 0;
    for (Candidate* candidate : smallest()) {
      actions += num_actions(case_.config, candidate->layout);
      planned_.insert(candidate);
      if (actions <= most_actions || exact_.empty() || candidate->bytes == exact_.front().peak_bytes) {
        exact_.push_back(
            predict_layout(*checked(candidate->layout), case_.machine, candidate->layout, case_.options.price));
      } else {
        not_simulated_.push_back(candidate);
      }
    }
  }

  // Returns the score of a planned layout, worse by the share of the host's memory that offloaded activations take: a
  // layout that fills it must be faster by most_host_weight.
  double score_with_host_memory(const LayoutResult& result) {
    const bool takes_host = result.layout.offload.any() && case_.options.objective != Objective::memory;
    const double share = takes_host && case_.target.host_bytes > 0
                             ? static_cast<double>(result.host_bytes) / static_cast<double>(case_.target.host_bytes)
                             : 0;
    return scores_.exact(result) * (1 + most_host_weight * share);
  }

  void rank() {
    found_.num_exact = std::ssize(exact_);
    std::stable_sort(exact_.begin(), exact_.end(), [&](const LayoutResult& a, const LayoutResult& b) {
      return std::pair(score_with_host_memory(a), a.step_seconds) <
             std::pair(score_with_host_memory(b), b.step_seconds);
    });
    found_.best.assign(exact_.begin(),
                       exact_.begin() + std::min(case_.options.top, static_cast<int64_t>(exact_.size())));
    const LayoutResult& best = exact_.front();
    if (case_.options.objective == Objective::memory) {  // layouts that were not simulated have larger peaks
      for (Candidate* candidate : not_simulated_)
        if (std::ssize(found_.best) < case_.options.top) found_.best.push_back(estimate_of_planned_peak(*candidate));
      return;
    }
    const double limit = scores_.exact(best) * (1 + estimate_error);
    for (const Candidate& candidate : candidates_) {
      if (planned_.contains(&candidate)) continue;
      const double at_best = candidate.estimate ? candidate.score : candidate.least_score;
      if (at_best < limit) ++found_.num_within_error;
      if (candidate.estimate && std::ssize(found_.best) < case_.options.top) found_.best.push_back(*candidate.estimate);
    }
  }

  // Predicts the best layout's step as published software runs it.
  void name_published() {
    const RunLayout& best = exact_.front().layout;
    found_.error = expected_error(case_.machine, best.zero);
    const std::optional<Machine> published = published_machine(case_.machine, best.zero);
    if (!published) return;
    const RunConfig config = checked_layout(case_.config, best);
    found_.published = {published->software.release,
                        predict_run(config, *published, best.world_size()).forecast.step_seconds};
  }

  // Predicts the best layout's step with parallel.overlap_tensor, which the search itself does not try.
  void try_overlap() {
    const LayoutResult& best = exact_.front();
    RunConfig config = checked_layout(case_.config, best.layout);
    const bool may_overlap = best.layout.tensor > 1 && !config.parallel.overlap_tensor &&
                             !is_fp8(config.precision.linears) && !is_fp8(config.precision.weight_gradients);
    if (!may_overlap || !case_.machine.software.is_own()) return;
    config.parallel.overlap_tensor = true;
    const Prediction overlapped = predict_run(config, case_.machine, best.layout.world_size());
    if (overlapped.forecast.step_seconds < best.step_seconds &&
        overlapped.plan.largest.arenas.total() <= case_.device_bytes)
      found_.overlapped_seconds = overlapped.forecast.step_seconds;
  }

  // Explains for each key and value that the best layout does not have why it lost.
  void explain() {
    const auto winner = class_values(found_.best.front().layout);
    std::set<std::pair<size_t, int64_t>> values;
    for (const auto& [value, miss] : misses_.of_classes()) values.insert(value);
    for (const Candidate& candidate : candidates_) {
      const auto own = class_values(candidate.layout);
      for (size_t i = 0; i < num_classes; ++i) values.insert({i, own[i]});
    }
    int64_t explained = 0;
    for (const auto& value : values) {
      show("comparing with other values", explained++, std::ssize(values));
      if (value.second != winner[value.first]) explain_class(value.first, value.second);
    }
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
    Candidate* best = case_.options.objective == Objective::memory ? smallest_of_class(is_of_class, lost)
                                                                   : quickest_of_class(is_of_class, lost);
    if (best != nullptr) {
      lost.fits = true;
      lost.best = estimate_of_planned_peak(*best);
      name(best->layout);
    } else {
      const auto miss = misses_.of_classes().find({key, value});
      if (miss == misses_.of_classes().end()) return;  // a rule of configs forbids all layouts of the class
      lost.missing_bytes = miss->second.bytes;
      name(miss->second.layout);
    }
    found_.lost.push_back(std::move(lost));
  }

  LayoutResult estimate_of_planned_peak(Candidate& candidate) {
    estimate(candidate);
    LayoutResult result = *candidate.estimate;
    result.peak_bytes = candidate.bytes;
    result.is_peak_exact = candidate.bytes_known == BytesKnown::exact;
    return result;
  }

  // Returns the layout with the smallest peak, or with the smallest bound once most_peaks_planned ranks are planned;
  // null if none fits.
  template <typename IsOfClass>
  Candidate* smallest_of_class(const IsOfClass& is_of_class, LostClass& lost) {
    std::vector<Candidate*> left;
    for (Candidate& candidate : candidates_)
      if (is_of_class(candidate.layout)) left.push_back(&candidate);
    for (int tries = 0; !left.empty(); ++tries) {
      const auto least = std::min_element(left.begin(), left.end(),
                                          [](const Candidate* a, const Candidate* b) { return a->bytes < b->bytes; });
      Candidate& candidate = **least;
      if (candidate.bytes > case_.device_bytes) {
        lost.all_tried = tries < most_peaks_planned;
        misses_.add(candidate.layout, candidate.bytes - case_.device_bytes);
        return nullptr;
      }
      if (candidate.bytes_known != BytesKnown::bound || tries >= most_peaks_planned) return &candidate;
      if (!plan_a_rank(candidate)) left.erase(least);
    }
    return nullptr;
  }

  // Returns the layout with the best estimate among up to most_fitting that fit; null if none was found.
  template <typename IsOfClass>
  Candidate* quickest_of_class(const IsOfClass& is_of_class, LostClass& lost) {
    Candidate* best = nullptr;
    int fitting = 0, tries = 0;
    int64_t above_bound = 0;  // smallest excess of a plan over its bound, among layouts that did not fit
    for (Candidate& candidate : candidates_) {
      if (fitting == most_fitting || tries == most_tries) break;
      if (!is_of_class(candidate.layout) || planned_.contains(&candidate)) continue;
      if (candidate.least.bytes + above_bound > case_.device_bytes) {
        lost.all_tried = false;
        continue;
      }
      const std::optional<RunConfig> config = checked(candidate.layout);
      if (!config) continue;
      ++tries;
      int64_t lacks = 0;
      if (!keeps_budget(candidate, [&] { lacks = missing(*config, candidate); })) continue;
      if (lacks > 0) {
        misses_.add(candidate.layout, lacks);
        const int64_t above = case_.device_bytes + lacks - candidate.least.bytes;
        above_bound = above_bound == 0 ? above : std::min(above_bound, above);
        continue;
      }
      ++fitting;
      estimate(candidate);
      if (best == nullptr || candidate.score < best->score) best = &candidate;
    }
    if (tries == most_tries) lost.all_tried = false;
    return best;
  }

  SearchCase case_;
  LayoutEstimator estimator_;
  LayoutScores scores_;
  HeldKeys held_;
  Misses misses_;
  LayoutSearch found_;
  std::vector<Candidate> candidates_;   // layouts that fit by their bounds, most promising first
  std::set<const Candidate*> planned_;  // members of candidates_
  std::vector<LayoutResult> exact_;
  // Exact bytes by class values and number of data ranks.
  std::map<std::pair<ClassValues, int64_t>, int64_t> planned_peaks_;
  std::vector<Candidate*> not_simulated_;  // layouts with exact bytes, but no simulated step
  std::string over_budget_;                // message of the first plan that exceeded the budget
};

}  // namespace

LayoutSearch search_layouts(const RunConfig& config, const Machine& machine, const SearchOptions& options) {
  require_layouts(config);
  return Search(config, machine, options).run();
}

}  // namespace gptrain::planner
