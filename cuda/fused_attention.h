// Attention as a library computes it: the seam between the CUDA backend and cuDNN.
//
// device/fused_attention.cpp implements it with cuDNN. host/fused_attention.cpp serves only ops with max_documents, so
// that the host harness runs all other attention in our own kernels.
//
// An op with AttentionMask::max_documents runs in pieces of several sequences. The library sees each document as a
// sequence of a ragged batch, with the lengths and offsets of a DocumentTable that the caller has filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/documents.h"
#include "ops/ops.h"
#include "stream.h"

namespace gptrain::inline cuda {

// How the library serves an op: `sequences` at a time, a divisor of the batch. 0: not at all; `refusal` is the reason,
// or empty if the library never serves such ops.
struct AttentionPieces {
  int64_t sequences = 0;
  std::string refusal;
};

// Fused attention of a library. Forward and backward of an op need not both use it: lse has the same meaning. One
// thread calls at a time.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;

  // Returns how the library serves an op. REQUIRES: the op has a fused_attention_shape (ops/fused_attention_policy.h).
  // The answer depends only on the op and on the device and library found at start, not on timing or free memory. The
  // first call for a shape asks the library and builds everything that `run` needs, which takes up to some seconds and
  // some of the library's own device memory; it must not happen during a CUDA graph capture.
  virtual AttentionPieces pieces(const AttentionForward& op) = 0;
  virtual AttentionPieces pieces(const AttentionBackward& op) = 0;

  // Runs an op that `pieces` has accepted; ops.h defines its result. Queued on the stream; neither waits nor allocates,
  // and may be captured, with the addresses of operands and scratch. `documents`: null, or the table with as many
  // sequences per piece as `pieces` returned. Results are undefined for a piece with more documents than it has room
  // for. Results have the same bits in every run, except for backward without AttentionBackward::fixed_bits. `scratch`:
  // at least fused_attention_scratch_bytes of the op, aligned to 256 bytes.
  //
  // Throws Error(device), with the shape and the library's own text, if the library fails.
  virtual void run(const AttentionForward& op, const DocumentTable* documents, std::byte* scratch) = 0;
  virtual void run(const AttentionBackward& op, const DocumentTable* documents, std::byte* scratch) = 0;
};

// Options that benches vary.
struct FusedAttentionOptions {
  // Scratch bytes of a piece of backward; nullopt: as in fused_attention_policy.h.
  std::optional<int64_t> backward_bytes = std::nullopt;
};

// Runs on the calling thread's current device. Throws Error(machine) if the library is too old, Error(device) if it
// fails.
std::unique_ptr<FusedAttention> make_fused_attention(Stream stream, const FusedAttentionOptions& options = {});

}  // namespace gptrain::cuda
