// Costs and sizes of each op: used by the plan, by reports, by the profile, and by the real backends for the size of
// their scratch.
#pragma once

#include <cstdint>
#include <string>

#include "base/event.h"
#include "base/int128.h"
#include "ops/ops.h"
#include "ops/target.h"

namespace gptrain {

struct Footprint {
  Flops model_flops =
      0;  // matrix products of the true shapes: causal half, true vocabulary, no recomputation (the caller's part)
  Flops executed_flops = 0;   // matrix products as executed: padded vocabulary, whole tiles on the causal diagonal
  int64_t bytes_moved = 0;    // lower bound of memory traffic: each operand read or written once
  int64_t scratch_bytes = 0;  // bound of the memory the op needs beside its operands, on `target`
  ProductShape products = {};    // that executed_flops are of
};

// Model FLOPs count 2 per multiply-add of a matrix product; norms, softmax, activations, biases and the update count 0.
// The text, for profiles, has sizes and dtypes by the letters of ops.h, which tell two calls of an op apart: "N=8192
// in=768 out=2304 bf16", "B=8 T=1024 H=12 G=12 D=64 bf16".
#define GPTRAIN_DECLARE_FOOTPRINT(Op)                      \
  Footprint footprint(const Op& op, const Target& target); \
  std::string shape_text(const Op& op);
GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_FOOTPRINT)
#undef GPTRAIN_DECLARE_FOOTPRINT

// Query and key tile sizes of the attention ops: what "whole tiles on the causal diagonal" means.
constexpr int64_t attention_query_tile = 64;
constexpr int64_t attention_key_tile = 64;
// Of a sequence in attention, whole tiles.
constexpr int64_t executed_length(int64_t tokens) {
  return (tokens + attention_key_tile - 1) / attention_key_tile * attention_key_tile;
}

}  // namespace gptrain
