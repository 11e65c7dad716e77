// Bytes that a step moves if optimizer state is away (on a GPU's host or on disk), and the bandwidths that hide them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "machine/event_times.h"
#include "parallel/memory.h"
#include "step/step_log.h"

namespace gptrain::inline planner {

// Bytes of one rank in one step.
struct LinkBytes {
  int64_t read = 0, written = 0;       // bytes of drives
  int64_t to_host = 0, to_device = 0;  // between a GPU and its host, offloaded activations included
  int64_t moved_by_updates = 0;        // read and written in memory by updates beside the passes

  int64_t all() const { return read + written + to_host + to_device + moved_by_updates; }
};
LinkBytes link_bytes(const StepLog& log);  // the sums over a log's events

// Returns the bytes that the drives of a node lack for ranks with this memory; 0 if they suffice or are not known.
int64_t missing_on_drives(const MemoryPlan& memory, const Machine& machine, int64_t world_size);

// The bandwidth that keeps a rank computing for most of the time, by the formula of ZeRO-Infinity (arXiv 2104.07857):
// efficiency = i b / (i b + p), with i FLOPs for each byte moved, b bytes per second and p FLOP/s while computing.
struct LinkNeed {
  static constexpr double aim = 0.9;  // efficiency that the needed bandwidth gives

  std::string_view values;       // values that move
  std::string_view place;        // where these values lie
  double flops_per_byte = 0;     // i
  double needed = 0, there = 0;  // bytes per second of a rank: for `aim`, and of the machine
  double efficiency = 0;         // with `there`
};
// Returns the needs of parameters with gradients, of optimizer state and of blocks' inputs. REQUIRES: the config keeps
// optimizer state away.
std::vector<LinkNeed> link_needs(const StepConfig& config, const MemoryConfig& memory, const Machine& machine,
                                 int64_t world_size);
// Returns the FLOP/s of a rank's large matrix products.
double sustained_flops(const PrecisionConfig& precision, const Machine& machine, int64_t world_size);

}  // namespace gptrain::planner
