// Ranks on a CUDA device, or on the host harness.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "ranks.h"

namespace gptrain::testing {

// Puts every rank on the same device.
inline const Wrapping on_cuda{.device = [](int64_t) { return make_cuda_backend(0); }};

// Ends the program as skipped if there is no device.
inline void require_device() {
  constexpr int exit_skipped = 77;
  if (num_cuda_devices() > 0) return;
  std::puts("skipped: there is no CUDA device");
  std::exit(exit_skipped);
}

}  // namespace gptrain::testing
