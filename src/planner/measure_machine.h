// Measures the machine at hand, for the profile by which steps on it are predicted.
#pragma once

#include <filesystem>
#include <functional>

#include "comm/world.h"
#include "machine/measured_machine.h"

namespace gptrain {

struct MeasuringOptions {
  double seconds = 60;           // about, in all
  bool on_gpu = false;           // CUDA device 0, where run.device = auto would take one
  std::filesystem::path folder;  // whose storage is measured
  // Called now and then with the seconds since the start.
  std::function<void(double)> progress = {};
};

// On a CPU for 1, 2, 4, ... ranks that share its cores and are at work at the same time, and the links between these as
// threads; on a GPU for one rank. Borrows at most a GiB for each of the ranks, and 32 MiB of storage. Error(device): the
// device cannot be had, or fails; Error(usage): the folder cannot be written to.
MeasuredMachine measure_machine(const MeasuringOptions& options);

// The collectives between all ranks of the world, measured and checked as bench_collectives does. Collective; every rank
// gets the same tables.
RateTables measure_links(World& world, double seconds, const std::function<void()>& tick = {});

}  // namespace gptrain
