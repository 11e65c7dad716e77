// The mask of the attention ops.
#pragma once

#include <cstdint>

#include "base/attention_pattern.h"

namespace gptrain::inline ops {

// The (query, key) pairs of a sequence that attend: all pairs, or with `causal` those of a pattern, within documents.
struct AttentionMask {
  bool causal = true;
  AttentionPattern pattern = {};  // REQUIRES causal if not dense; column_sets divides num_heads
  // Device memory, [B, T]: position in its sequence where the document of token t begins, in [0, t], never less than
  // that of token t - 1. Null: a sequence is one document. REQUIRES causal if not null.
  const int32_t* document_starts = nullptr;
  // Bound of the average number of documents per sequence for which a GPU's library (cuDNN) gets memory; it treats each
  // document as a sequence. Sequences beyond the bound run on the project's own kernels. 0: all do. Used only with
  // document_starts.
  int64_t max_documents = 0;

  // RETURNS the number of tokens that a query sees, itself included; 0: all up to itself. REQUIRES: pattern.one_run().
  constexpr int64_t window() const { return pattern.width; }
};

}  // namespace gptrain::ops
