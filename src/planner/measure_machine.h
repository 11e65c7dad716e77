// Measures this machine for `gptrain bench device`, whose profile predicts steps on it.
#pragma once

#include <filesystem>
#include <functional>

#include "comm/world.h"
#include "machine/measured_machine.h"

namespace gptrain::inline planner {

struct MeasuringOptions {
  double seconds = 60;           // approximate total time
  bool on_gpu = false;           // measures CUDA device 0 instead of the CPU
  std::filesystem::path folder;  // folder whose storage rate is measured
  // Called from time to time with the seconds since the start; may be empty.
  std::function<void(double)> progress = {};
};

// Measures a CPU for 1, 2, 4, ... ranks that share its cores and work at the same time, and the links between ranks as
// threads; or a GPU for one rank. Uses at most 1 GiB of memory per rank and 32 MiB of storage. THROWS Error(machine) if
// the device is not available, Error(device) if it fails, Error(usage) if the folder cannot be written to.
MeasuredMachine measure_machine(const MeasuringOptions& options);

// Measures and checks, as bench_collectives does, the collectives between all ranks of the world. Collective: all ranks
// call it, and all get the same tables. `tick` is called from time to time; it may be empty.
RateTables measure_links(World& world, double seconds, const std::function<void()>& tick = {});

}  // namespace gptrain::planner
