// The field's closed formulas for one training step, to be held against what the plan counted op by op.
#pragma once

#include <cstdint>
#include <string>

#include "base/int128.h"
#include "config/run_config.h"

namespace gptrain {

// Model FLOPs: matrix products of forward and backward (2 FLOPs a multiply-add, backward twice forward), true
// vocabulary, half of the attention matrix, no recomputation:
//   6 T [ l (h (q + 2 kv) + q h) + l n h f + h V ] + 6 l q B s^2,  T = B s, n = 3 for a gated FFN and 2 otherwise.
// With an attention window w < s, which leaves w (2s - w + 1) / 2 pairs of queries and keys, w (2s - w + 1) takes the
// place of s^2. Documents count as if they were not masked.
Flops model_flops_formula(const ModelConfig& model, int64_t sequences);

// The reference formula of the field (Narayanan et al. 2021, arXiv 2104.04473, eq. 3): full recomputation, MHA, f = 4h,
// whole attention matrix:
//   96 B s l h^2 (1 + s/(6h) + V/(16 l h)) = 96 B s l h^2 + 16 B s^2 l h + 6 B s h V.
Flops reference_flops_formula(const ModelConfig& model, int64_t sequences);

// Activations of one block and micro-batch of b sequences, in a 16-bit dtype, without parallelism or recomputation, as
// published (Korthikanti et al. 2022, arXiv 2205.05198), with a flash kernel and dropout masks made anew instead of
// stored: 32 s b h.
int64_t published_block_activation_bytes(const ModelConfig& model, int64_t micro_batch);

// Exact decimal digits.
std::string to_string(Flops flops);

}  // namespace gptrain
