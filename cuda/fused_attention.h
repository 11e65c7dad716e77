// Attention as a library computes it: the seam between the CUDA backend and cuDNN.
//
// device/fused_attention.cpp is cuDNN's. host/fused_attention.cpp takes nothing but ops whose documents have room, so
// that on the host harness all other attention runs in the own kernels.
//
// An op whose documents have room (AttentionMask::max_documents) goes in pieces of some sequences. To the library each
// document is a sequence of a ragged batch, by the lengths and offsets of a DocumentTable, which the caller has filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/documents.h"
#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

// How the library takes an op: so many sequences at a time, which divide the batch. 0: not at all, and why; no reason
// where none could be expected to.
struct AttentionPieces {
  int64_t sequences = 0;
  std::string refusal;
};

// Forward and backward may go different ways: lse means the same in both. One thread calls at a time.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;

  // For ops of a fused_attention_shape (ops/fused_attention_policy.h). It depends on the op and on the device and
  // library found at the start, never on timing or on what memory there is. The first time that it is asked of a shape
  // it asks the library itself, and builds what `run` needs, which takes up to some seconds and some device memory of
  // the library's own, and must not happen while a CUDA graph is captured.
  virtual AttentionPieces pieces(const AttentionForward& op) = 0;
  virtual AttentionPieces pieces(const AttentionBackward& op) = 0;

  // As ops.h says of the op, which `pieces` must have accepted; `documents`: null, or the table of as many sequences to
  // a piece as `pieces` says. Of a piece that holds more documents than it has room for, results may be anything.
  // Queued on the stream. The bits of the results do not change from run to run, but for those of backward without
  // AttentionBackward::fixed_bits. `scratch` is at least the op's
  // fused_attention_scratch_bytes, aligned to 256 bytes. Runs neither wait nor allocate on the device, and may be
  // captured: the addresses of operands and scratch are part of what is captured.
  //
  // Throws Error (device) with the shape and the library's own text where the library fails.
  virtual void run(const AttentionForward& op, const DocumentTable* documents, std::byte* scratch) = 0;
  virtual void run(const AttentionBackward& op, const DocumentTable* documents, std::byte* scratch) = 0;
};

// What benches vary.
struct FusedAttentionOptions {
  // That a piece of backward may take of scratch, which is then so large; none: as fused_attention_policy.h has it.
  std::optional<int64_t> backward_bytes = std::nullopt;
};

// On the calling thread's current device. Throws Error (device).
std::unique_ptr<FusedAttention> make_fused_attention(Stream stream, const FusedAttentionOptions& options = {});

}  // namespace gptrain
