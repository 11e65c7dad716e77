#include "cli/environment.h"

#include <cstdlib>
#include <unistd.h>

namespace gptrain {
namespace {

// Some ten microseconds: longer than the gap between two ops, far shorter than a scheduler's time slice.
constexpr const char* spin_count = "1000";

}  // namespace

void shorten_openmp_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("GOMP_SPINCOUNT", spin_count, 0);
  execv("/proc/self/exe", argv);
}

}  // namespace gptrain
