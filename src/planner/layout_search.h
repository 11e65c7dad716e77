// What a search for layouts has found, as plain data for reports; the planner (planner/search.h) fills it in.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/kinds.h"
#include "base/offload_choice.h"
#include "machine/expected_error.h"
#include "parallel/groups.h"

namespace gptrain {

// How a run is spread over ranks, and what it does for memory: the keys that a search changes.
struct RunLayout {
  int64_t tensor = 1;
  bool sequence = false;
  int64_t pipeline = 1;
  int64_t virtual_stages = 1;
  PipelineOrder schedule = PipelineOrder::one_f_one_b;
  bool is_balanced = false;  // layers spread by time, although equal numbers would do
  RankOrder rank_order = RankOrder::tensor_data_pipeline;
  int64_t data = 1;
  int64_t zero = 0;
  int64_t micro = 1;         // sequences of a micro-batch
  int64_t accumulation = 1;  // micro-batches
  RecomputeKind recompute = RecomputeKind::none;
  int64_t recompute_interval = 0;  // of every_nth
  OffloadChoice offload = {};

  int64_t world_size() const { return tensor * pipeline * data; }
  bool operator==(const RunLayout&) const = default;
};

// Keys of a config that a search chooses.
constexpr std::string_view schedule_key = "parallel.pipeline_schedule", rank_order_key = "parallel.rank_order",
                           recompute_key = "memory.recompute", offload_key = "memory.offload_activations";

// Its keys and their values, for people; parallel.layers_per_stage is "balanced" or "default".
std::vector<std::pair<std::string, std::string>> layout_keys(const RunLayout& layout);
// The value of one of these keys.
std::string value_text(const RunLayout& layout, std::string_view key);

// What is said of one: of an exact one what the dry run of its config says, of others estimates.
struct LayoutResult {
  RunLayout layout;
  bool is_exact = false;
  double step_seconds = 0;
  double bubble_seconds = 0;                        // of the mean stage
  std::array<double, num_waited_lanes> exposed_seconds{};  // likewise
  int64_t peak_bytes = 0;                           // of the largest rank
  bool is_peak_exact = false;                       // otherwise it takes at least that
  int64_t host_bytes = 0;  // of its host's memory, by the ranks of a node; exact ones only
  double tokens_per_second = 0;
  double mfu = 0;  // exact ones only, as the next ones
  double model_flops = 0;  // in a second, of all devices
  double gpu_hours = 0;    // without failures
  double goodput = 1;
  double cost = 0;  // failures included; 0 without a price
};

// The layouts that have one value of one key, where the best layout has another: the best of them, or, where none fits,
// the one that is the least too large.
struct LostClass {
  std::string key;    // "parallel.zero"
  std::string value;  // "3"
  bool fits = false;
  bool all_tried = true;      // where it does not fit: otherwise some were left out that are nearly as large
  int64_t missing_bytes = 0;  // likewise: at least so many, by the bound or on a rank that was planned
  LayoutResult best;          // where it fits
};

struct LayoutSearch {
  std::string machine;  // "a100-80g in dgx-a100 nodes"
  ExpectedError error = {};
  std::string objective;
  int64_t gpus = 0;
  int64_t room_bytes = 0;        // of a device
  std::vector<std::string> held;  // "parallel.tensor=8": keys that all layouts have that value of, as was asked
  int64_t activation_budget = 0;  // of layouts with memory.recompute "optimal"; 0: none is given
  int64_t num_layouts = 0;       // that the config and the machine allow
  int64_t num_too_large = 0;     // of them: more memory than there is by the lower bound alone
  int64_t num_played = 0;        // of the others: whose pipelines were played pass by pass
  int64_t num_weighed = 0;       // likewise, where the smallest peak is looked for: the memory of all ranks was planned
  int64_t num_exact = 0;         // of those: planned and simulated as a dry run does
  int64_t num_within_error = 0;  // not exact, but estimated so near to the best that they could be better; by memory none
  std::vector<LayoutResult> best;  // the best first; empty: nothing fits
  std::vector<LostClass> lost;
  int64_t least_missing_bytes = 0;  // where nothing fits
  RunLayout least_missing;          // likewise
  bool least_missing_is_exact = false;  // else at least so much
  std::vector<std::string> untried;     // likewise: settings that take less memory, and change what is trained
};

}  // namespace gptrain
