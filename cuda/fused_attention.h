// Attention as a library computes it: the seam between the CUDA backend and cuDNN.
//
// device/fused_attention.cpp is cuDNN's. host/fused_attention.cpp takes nothing, so that on the host harness all
// attention runs in the own kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

// What `takes` says depends on the op and on the device and library found at the start, never on timing; it is true
// only for shapes of ops/fused_attention_policy.h. Forward and backward may go different ways: lse means the same in
// both. One thread calls at a time.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;

  virtual bool takes(const AttentionForward& op) const = 0;
  virtual bool takes(const AttentionBackward& op) const = 0;

  // As ops.h says of the op, which `takes` must have accepted; queued on the stream. The bits of the results do not
  // change from run to run. `scratch` is at least the op's fused_attention_scratch_bytes, aligned to 256 bytes.
  //
  // A shape's first run builds what the library needs for it, which takes up to some seconds and some device memory of
  // the library's own, and must not happen while a CUDA graph is captured. Its next runs neither wait nor allocate on
  // the device, and may be captured: the addresses of operands and scratch are part of what is captured.
  //
  // Throws Error (device) with the shape and the library's own text where the library fails or wants more scratch.
  virtual void run(const AttentionForward& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void run(const AttentionBackward& op, std::byte* scratch, int64_t scratch_bytes) = 0;
};

// On the calling thread's current device. Throws Error (device).
std::unique_ptr<FusedAttention> make_fused_attention(Stream stream);

}  // namespace gptrain
