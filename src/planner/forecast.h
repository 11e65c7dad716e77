// The planner's prediction of a step and a run, as plain data for reports.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "machine/expected_error.h"
#include "parallel/groups.h"

namespace gptrain::inline planner {

// The longest wait of a step for a collective of one lane.
struct LongestWait {
  double seconds = 0;
  std::string_view operation = {};  // name of the awaited operation, in static storage
  int32_t unit = -1;                // unit of the waiting action; -1: the wait is in no unit
};

// A layout's step as other software runs it, whose steps are published.
struct PublishedStep {
  std::string software;  // "Megatron-LM of 2021"; empty: none is predicted
  double seconds = 0;
};

struct StepForecast {
  std::string machine;   // "a100-80g in dgx-a100 nodes"
  std::string software;  // "gptrain"
  std::string origin;    // see step_origin
  ExpectedError error = {};
  double step_seconds = 0;
  double warm_up_seconds = 0;  // time of a step before start_step of a method; 0: all steps are alike
  int64_t warm_up_steps = 0;
  std::string_view warm_up_work = "which sum gradients as they are";
  double averaging_seconds = 0;  // time of a step that averages weights (parallel.local_steps); 0: none does
  int64_t averaging_every = 0;   // steps from one averaging to the next
  std::string_view averaging_work = "islands average their weights";
  PublishedStep published = {};  // set if gptrain's own speed is not measured
  double bubble_seconds = 0;     // waiting for other stages, mean over the stages
  // Communication that no work hides, by lane; mean over the stages.
  std::array<double, num_waited_lanes> exposed_seconds{};
  std::array<LongestWait, num_waited_lanes> longest_waits{};
  // Seconds of the step's critical path by category of work, largest first; they add up to step_seconds.
  std::vector<std::pair<std::string_view, double>> critical_path;
  double checkpoint_cost_seconds = 0;   // pause of the steps for one checkpoint
  double best_checkpoint_interval = 0;  // seconds between checkpoints that lose the least time to them and to failures
  double goodput = 1;                   // share of the run's time that steps have with that interval
};

}  // namespace gptrain::planner
