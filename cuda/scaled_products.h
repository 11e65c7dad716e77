// FP8 products of the CUDA backend: the seam between it and a library.
//
// device/scaled_products.cpp is cuBLASLt's. host/scaled_products.cpp is the CPU backend's, for the host harness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

// Algorithms are not timed: each product is served by the first that the library names for it and that starts, which is
// the same one for the same device and library. None is taken that wants more workspace than is planned or that rounds
// partial sums to 16 bits.
class ScaledProducts {
 public:
  virtual ~ScaledProducts() = default;

  // As ops.h says of the op; queued on the stream. `scratch`: the op's gpu_scratch_bytes, aligned to 256 bytes. The
  // first run of a product may wait; later ones do not, and may be captured in a CUDA graph. Throws Error(device),
  // naming the op and its shape, where the device or the library has no such products.
  virtual void run(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes) = 0;
};

// On the calling thread's current device. Throws Error(device).
std::unique_ptr<ScaledProducts> make_scaled_products(Stream stream);

}  // namespace gptrain
