// The field's closed formulas for one training step. Tests compare them with the plan, which counts op by op.
#pragma once

#include <cstdint>
#include <string>

#include "base/int128.h"
#include "config/run_config.h"

namespace gptrain::inline report {

// Returns model FLOPs: matrix products of forward and backward (2 FLOPs per multiply-add, backward twice forward), true
// vocabulary, half of the attention matrix, no recomputation:
//   6 T [ l (h (q + 2 kv) + q h) + l n h f + h V ] + 6 l q B s^2,  T = B s, n = 3 for a gated FFN and 2 otherwise.
// A layer with experts has f times top_k, plus that of shared experts, and h times the number of experts for its
// router (one more with a shared gate). In a layer whose attention pattern is not dense, twice its pairs of queries and
// keys replace s^2. Masks between documents are ignored.
Flops model_flops_formula(const ModelConfig& model, int64_t sequences);

// Returns the field's reference formula (Narayanan et al. 2021, arXiv 2104.04473, eq. 3): full recomputation, MHA, f =
// 4h, whole attention matrix:
//   96 B s l h^2 (1 + s/(6h) + V/(16 l h)) = 96 B s l h^2 + 16 B s^2 l h + 6 B s h V.
Flops reference_flops_formula(const ModelConfig& model, int64_t sequences);

// Returns the published bytes of activations of one block for a micro-batch of b sequences, in a 16-bit dtype, without
// parallelism or recomputation (Korthikanti et al. 2022, arXiv 2205.05198), with fused attention and with dropout masks
// that are generated again instead of stored: 32 s b h.
int64_t published_block_activation_bytes(const ModelConfig& model, int64_t micro_batch);

// Returns the number of parameters that a token passes through: `all`, the model's, less those of experts to which the
// token is not sent.
int64_t active_parameters(const ModelConfig& model, int64_t all);

// Returns all decimal digits.
std::string to_string(Flops flops);

}  // namespace gptrain::report
