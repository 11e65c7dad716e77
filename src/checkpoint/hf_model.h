// What a model is called by the transformers library: the class that computes it, the class's config, and where each of
// its tensors lies in gptrain's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "config/json_text.h"
#include "config/run_config.h"

namespace gptrain {

// Rows [first_row, first_row + rows) of one of gptrain's tensors, under the name that transformers gives them.
struct HfTensor {
  std::string name;            // "transformer.h.0.attn.c_attn.weight"
  std::string source;          // "blocks.0.attention.qkv.weight"
  int64_t first_row;           // of the source
  int64_t rows;                // of the source
  bool transposed;             // stored as [in, out], as transformers' Conv1D has it
  std::vector<int64_t> shape;  // as stored
};

struct HfModel {
  std::string architecture;  // GPT2LMHeadModel, LlamaForCausalLM, or Qwen3ForCausalLM
  Json config;               // the content of config.json
  // By source, in the spec's order, so that each of gptrain's tensors is read once; every element of the model is in
  // exactly one of them.
  std::vector<HfTensor> tensors;
  // Keys that the class lacks and that act in training only: "model.z_loss = 0.0001".
  std::vector<std::string> left_out;
  // Of data.mask_documents, which no class has: the function is the same within one document. Else empty.
  std::string warning;
};

// The first of these classes that computes the very same function:
//   GPT2LMHeadModel   layernorm, learned positions, gelu_tanh or gelu, biases, as many key/value heads as heads
//   LlamaForCausalLM  rmsnorm, rope, swiglu
//   Qwen3ForCausalLM  rmsnorm, rope, swiglu, qk_norm, no biases
// `dtype` is that of the weights, f32 or bf16. Throws Error(usage) if there is none; the message names, for each class,
// every key that is in the way.
HfModel hf_model(const RunConfig& config, DType dtype);

}  // namespace gptrain
