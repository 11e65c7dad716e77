#include "cli/environment.h"

#include <cstdlib>
#include <unistd.h>

#include "comm/device_groups.h"

namespace gptrain::inline cli {
namespace {

// About ten microseconds: longer than the gap between two ops, far shorter than a scheduler's time slice.
constexpr const char* spin_count = "1000";

// CUDA's maximum. The streams for compute, copies and lanes exceed the default of 8 queues, and streams that share a
// queue wait for each other.
constexpr const char* device_queues = "32";

}  // namespace

void give_streams_queues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", device_queues, 0); }

void load_kernels_at_start(int64_t ranks) {
  if (ranks > 1 && has_device_links()) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

void shorten_openmp_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("GOMP_SPINCOUNT", spin_count, 0);
  execv("/proc/self/exe", argv);
}

}  // namespace gptrain::cli
