// Costs and sizes of each op, for the plan, reports, the profile, and the scratch memory of the CPU and CUDA backends.
#pragma once

#include <cstdint>
#include <string>

#include "base/event.h"
#include "base/int128.h"
#include "ops/key_tiles.h"
#include "ops/ops.h"
#include "ops/target.h"

namespace gptrain::inline ops {

struct Footprint {
  // Matrix products of the true shapes: causal half, true vocabulary; callers leave out recomputed ops.
  Flops model_flops = 0;
  Flops executed_flops = 0;    // matrix products as executed: padded vocabulary, whole tiles on the causal diagonal
  int64_t bytes_moved = 0;     // lower bound of memory traffic: each operand read or written once
  int64_t scratch_bytes = 0;   // upper bound of the memory that the op needs beside its operands on the target
  ProductShape products = {};  // shape of the products that executed_flops counts
};

// Model FLOPs count 2 per multiply-add of a matrix product; norms, softmax, activations, biases and the update count 0.
// shape_text, for profiles, gives the sizes (letters as in ops.h) and dtypes that distinguish two calls of an op:
// "N=8192 in=768 out=2304 bf16", "B=8 T=1024 H=12 G=12 D=64 bf16".
#define GPTRAIN_DECLARE_FOOTPRINT(Op)                      \
  Footprint footprint(const Op& op, const Target& target); \
  std::string shape_text(const Op& op);
GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_FOOTPRINT)
#undef GPTRAIN_DECLARE_FOOTPRINT

// Matrix products that attention's backward pass executes for each pair of query and key.
constexpr int64_t library_backward_products = 5, own_backward_products = 7;

// Query and key tile sizes of the attention ops, in tokens; executed_flops counts whole tiles on the causal diagonal.
constexpr int64_t attention_query_tile = attention_tile;
constexpr int64_t attention_key_tile = attention_tile;
// RETURNS the length of a sequence in attention, rounded up to whole tiles.
constexpr int64_t executed_length(int64_t tokens) {
  return (tokens + attention_key_tile - 1) / attention_key_tile * attention_key_tile;
}

}  // namespace gptrain::ops
