// How long a planned step takes, and the run: what the planner predicts, for reports.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/groups.h"
#include "machine/expected_error.h"

namespace gptrain {

// The longest of the waits for the collectives of a lane, and for what.
struct LongestWait {
  double seconds = 0;
  std::string_view operation = {};  // static storage
  int32_t unit = -1;                // none
};

struct StepForecast {
  std::string machine;  // "a100-80g in dgx-a100 nodes"
  ExpectedError error = {};
  double step_seconds = 0;
  double bubble_seconds = 0;                           // of the mean stage: waiting for other stages
  std::array<double, num_waited_lanes> exposed_seconds{};     // of the mean stage, by lane: communication that no work hides
  std::array<LongestWait, num_waited_lanes> longest_waits{};
  // What the longest chain of work of the step is spent on, the most first: names and seconds, which add up to the step.
  std::vector<std::pair<std::string_view, double>> critical_path;
  // Of a run in which nodes fail: the best time between two checkpoints, and the share of the time that steps have then.
  double checkpoint_cost_seconds = 0;  // that steps wait for one
  double best_checkpoint_interval = 0;
  double goodput = 1;
};

}  // namespace gptrain
