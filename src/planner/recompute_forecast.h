// What memory.recompute = "optimal", with or without offload "optimal", makes of a run, and what it
// would cost with more or less memory, as plain data for reports; the planner (planner/recompute_curve.h) fills it in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gptrain {

struct RecomputeForecast {
  // Blocks of a stage, by what is kept of them.
  struct OfStage {
    int64_t kept = 0;         // all
    int64_t in_part = 0;      // what their linears gave
    int64_t alone = 0;        // their input
    int64_t from_before = 0;  // not even that: they run again with blocks before them
    int64_t offloaded = 0;    // of all these, what is kept of them: on the host
    int64_t bytes = 0;        // of activations
    int64_t least_bytes = 0;  // that they could take
    double again_share = 0;   // time of what is run again, and of waits for copies, as a share of that of everything else
  };
  struct Point {
    std::string name;        // of the values of the two keys
    int64_t bytes = 0;       // of the stage that takes the most
    double again_share = 0;  // of the stage that has most to run again
    double step_seconds = 0;  // 0: not known
  };

  int64_t budget_bytes = 0;  // 0: what the device leaves
  int64_t room_bytes = 0;    // that, of the stage with the least; at most 0: all else does not fit
  std::vector<OfStage> stages;
  std::vector<Point> curve;  // in rising order of bytes
  std::vector<Point> without_offload;  // the same, where nothing may be offloaded; empty: nothing may be in `curve`
  std::vector<Point> others;           // as other values of the two keys have it
};

}  // namespace gptrain
