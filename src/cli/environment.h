// Environment variables that libraries read when they start.
#pragma once

#include <cstdint>

namespace gptrain::inline cli {

// Shortens the time for which idle OpenMP threads spin between parallel regions: by default milliseconds, which slows a
// step up to fiftyfold when other work shares the cores. Restarts this program once with a short spin, unless the user
// set OMP_WAIT_POLICY or GOMP_SPINCOUNT. Returns if nothing is to be done or the restart fails.
void shorten_openmp_spinning(char** argv);

// Requests the most hardware queues of a GPU that CUDA allows, unless the user set CUDA_DEVICE_MAX_CONNECTIONS.
// REQUIRES: no CUDA call yet, one thread.
void give_streams_queues();

// With several ranks, makes CUDA load kernels when a device is opened, not at their first launch, unless the user set
// CUDA_MODULE_LOADING. Loading may wait for the device, which may be running another group's kernel that waits for a
// peer that waits for this rank: a deadlock. REQUIRES: no CUDA call yet, one thread.
void load_kernels_at_start(int64_t ranks);

}  // namespace gptrain::cli
