// The choices of memory.recompute = "optimal", with or without offload "optimal", and their cost with more or less
// memory, as plain data for reports; planner/recompute_curve.h fills it in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gptrain::inline planner {

struct RecomputeForecast {
  // Numbers of a stage's blocks by the activations that they save, and the stage's figures.
  struct OfStage {
    int64_t saving_all = 0;      // blocks that save all activations
    int64_t in_part = 0;         // blocks that save the outputs of their linears and recompute the rest
    int64_t alone = 0;           // blocks that save only their input
    int64_t from_before = 0;     // blocks that save nothing: they are recomputed together with blocks before them
    int64_t offloaded = 0;       // blocks, of any of the kinds above, whose saved activations are on the host
    int64_t bytes = 0;           // memory of activations
    int64_t least_bytes = 0;     // least memory of activations that any choice needs
    double recompute_share = 0;  // time of recomputation and of waits for copies, over the time of everything else
  };
  struct Point {
    std::string name;            // values of memory.recompute and offload: "optimal, offload optimal"
    int64_t bytes = 0;           // activations of the stage that needs the most
    double recompute_share = 0;  // largest recompute_share of a stage
    double step_seconds = 0;     // 0: not known
  };

  int64_t budget_bytes = 0;  // memory.activation_budget; 0: all memory that the device has left
  int64_t headroom_bytes =
      0;  // memory left for activations on the stage with the least; at most 0: the rest does not fit
  std::vector<OfStage> stages;
  std::vector<Point> curve;            // in rising order of bytes
  std::vector<Point> without_offload;  // the curve without offload; empty if `curve` has no offload
  std::vector<Point> others;           // points for other values of the keys in Point::name
};

}  // namespace gptrain::planner
