// The result of a search for layouts, as plain data for reports; planner/search.h fills it in.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/kinds.h"
#include "base/offload_choice.h"
#include "config/axis_sizes.h"
#include "machine/expected_error.h"
#include "parallel/groups.h"
#include "planner/forecast.h"

namespace gptrain::inline planner {

// How a run is spread over ranks, and how it saves memory: the keys that a search changes.
struct RunLayout {
  int64_t tensor = 1;
  int64_t context = 1;
  ContextMethod context_method = ContextMethod::automatic;  // heads or ring if context > 1
  int64_t expert = 1;                                       // ranks over which experts are spread
  int64_t expert_tensor = 1;                                // tensor ranks over which each of these experts is cut
  bool sequence = false;
  int64_t pipeline = 1;
  int64_t virtual_stages = 1;
  PipelineOrder schedule = PipelineOrder::one_f_one_b;
  bool is_balanced = false;  // layers are spread over stages by time, although equal numbers are possible
  RankOrder rank_order = RankOrder::tensor_data_pipeline;
  int64_t data = 1;
  int64_t zero = 0;
  int64_t micro = 1;         // sequences per micro-batch
  int64_t accumulation = 1;  // micro-batches per step and data rank
  RecomputeKind recompute = RecomputeKind::none;
  int64_t recompute_interval = 0;  // n of every_nth, otherwise 0
  OffloadChoice offload = {};

  int64_t world_size() const { return ranks_of_model(*this) * data; }
  // Returns the number of ranks that hold the same parameters.
  int64_t replicas() const { return context * data; }
  // Returns the number of ranks that hold the same experts.
  int64_t expert_replicas() const {
    return expert == 1 ? replicas() : tensor * context * data / (expert_tensor * expert);
  }
  // Whether some blocks are recomputed and others are not.
  bool mixes_recomputation() const {
    return recompute == RecomputeKind::every_nth || recompute == RecomputeKind::optimal;
  }
  // Returns the recomputation of the recomputed blocks.
  RecomputeKind recomputed_kind() const {
    return recompute == RecomputeKind::selective || recompute == RecomputeKind::ffn ? recompute : RecomputeKind::block;
  }
  // Returns the recomputation of the blocks that are not recomputed (none), or of all blocks if all are treated alike.
  RecomputeKind plain_kind() const { return mixes_recomputation() ? RecomputeKind::none : recompute; }
  bool operator==(const RunLayout&) const = default;
};

// Keys of a config that a search chooses.
constexpr std::string_view context_method_key = "parallel.context_method", schedule_key = "parallel.pipeline_schedule",
                           rank_order_key = "parallel.rank_order", recompute_key = "memory.recompute";

// Returns the keys and their values for people; parallel.layers_per_stage is "balanced" or "default".
std::vector<std::pair<std::string, std::string>> layout_keys(const RunLayout& layout);
// REQUIRES: `key` is one of the keys of layout_keys.
std::string value_text(const RunLayout& layout, std::string_view key);

// Figures of a layout: those of its config's dry run if is_exact, otherwise estimates.
struct LayoutResult {
  RunLayout layout;
  bool is_exact = false;
  double step_seconds = 0;
  // Means over the stages: waiting for other stages; communication that no work hides, by lane.
  double bubble_seconds = 0;
  std::array<double, num_waited_lanes> exposed_seconds{};
  int64_t peak_bytes = 0;       // device memory of the largest rank
  bool is_peak_exact = false;   // otherwise peak_bytes is a lower bound
  int64_t host_bytes = 0;       // host memory of the fullest node's ranks; 0 unless exact
  int64_t lacks_on_drives = 0;  // bytes that a node's drives lack; 0 unless exact
  double tokens_per_second = 0;
  double mfu = 0;          // 0 unless exact
  double model_flops = 0;  // FLOP/s of all devices; 0 unless exact
  double gpu_hours = 0;    // length of the run without failures; 0 unless exact
  double goodput = 1;      // share of time that steps have if nodes fail; 1 unless exact
  double cost = 0;         // with failures; 0 unless exact and a price is given
};

// All layouts with one value of one key, for which the best layout has another value.
struct LostClass {
  std::string key;            // "parallel.zero"
  std::string value;          // "3"
  bool fits = false;          // whether a layout that fits was found
  bool all_tried = true;      // if none fits: whether each layout was planned or exceeds the memory by its bound
  int64_t missing_bytes = 0;  // if none fits: least missing memory of a layout, by its lower bound or a planned rank
  LayoutResult best;          // fastest layout found, or the smallest if the objective is memory; set if one fits
};

// Result of search_layouts.
struct LayoutSearch {
  std::string machine;      // "a100-80g in dgx-a100 nodes"
  std::string origin = {};  // see step_origin
  ExpectedError error = {};
  PublishedStep published = {};   // step of the best layout; see StepForecast
  double overlapped_seconds = 0;  // step of the best layout with parallel.overlap_tensor, if that takes less; else 0
  std::string objective;
  int64_t gpus = 0;
  int64_t device_bytes = 0;        // device memory for a rank
  int64_t node_host_bytes = 0;     // host memory of a node; 0: not known
  std::vector<std::string> held;   // "parallel.tensor=8": settings that the search must not change
  int64_t activation_budget = 0;   // budget of layouts with memory.recompute "optimal", in bytes; 0: none is given
  int64_t num_layouts = 0;         // layouts that the config and the machine allow
  int64_t num_too_large = 0;       // layouts that exceed the memory by their lower bound alone
  int64_t num_played = 0;          // other layouts whose pipelines were simulated pass by pass
  int64_t num_peaks_planned = 0;   // layouts whose memory was planned on all ranks (objective memory only)
  int64_t num_exact = 0;           // layouts that were planned and simulated as a dry run does
  int64_t num_within_error = 0;    // layouts not planned that may beat the best, by estimate_error; 0 by memory
  std::vector<LayoutResult> best;  // best first; empty if nothing fits
  std::vector<LostClass> lost;
  // The rest is set if nothing fits.
  int64_t least_missing_bytes = 0;      // missing memory of the layout that comes nearest
  RunLayout least_missing;              // layout that comes nearest
  bool least_missing_is_exact = false;  // otherwise least_missing_bytes is a lower bound
  bool untried_host = false;            // has_untried_host
  std::vector<std::string> untried;     // settings that save memory but change training, so that no search tries them
};

}  // namespace gptrain::planner
