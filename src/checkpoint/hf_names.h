// Names and layouts of a model's tensors in the transformers library: one table for import and export.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace gptrain::inline checkpoint {

enum class HfArchitecture : uint8_t {
  gpt2,
  gpt_neo,
  llama,
  mistral,
  ministral,
  qwen2,
  qwen3,
  gemma2,
  gemma3,
  mixtral,
  qwen2_moe,
  qwen3_moe
};

struct HfClass {
  HfArchitecture architecture;
  const char* name;        // "GPT2LMHeadModel"
  const char* model_type;  // "gpt2"

  // Returns true for LayerNorm, learned positions and an MLP without gate, all with biases.
  bool is_gpt() const { return architecture == HfArchitecture::gpt2 || architecture == HfArchitecture::gpt_neo; }
  // Returns true for norms before and after the branches with gain 1 + w, a scaled embedding, and layers with a window
  // amid others.
  bool is_gemma() const { return architecture == HfArchitecture::gemma2 || architecture == HfArchitecture::gemma3; }
  // Returns true for mixtures of experts.
  bool has_experts() const { return architecture == HfArchitecture::mixtral || is_qwen_moe(); }
  bool is_qwen_moe() const {
    return architecture == HfArchitecture::qwen2_moe || architecture == HfArchitecture::qwen3_moe;
  }
  // Returns true if linears are stored as [in, out], as transformers' Conv1D has it.
  bool transposes() const { return architecture == HfArchitecture::gpt2; }
  // Returns true if config.json says for each layer whether it has the model's window.
  bool has_layer_types() const {
    return architecture == HfArchitecture::ministral || architecture == HfArchitecture::qwen2 ||
           architecture == HfArchitecture::qwen3 || architecture == HfArchitecture::qwen2_moe || is_gemma();
  }
};

// Returns all classes in the order in which export tries them.
std::span<const HfClass> hf_classes();

// Rows [first_row, first_row + rows) of one of gptrain's tensors, under the name that transformers gives them.
struct HfTensor {
  std::string name;            // "transformer.h.0.attn.c_attn.weight"
  std::string source;          // "blocks.0.attention.qkv.weight"
  int64_t first_row;           // first row of the source
  int64_t rows;                // number of rows of the source
  bool transposed;             // stored as [in, out], as transformers' Conv1D has it
  std::vector<int64_t> shape;  // as stored
};

// Returns all tensors in the spec's order of their sources, then by first_row. Every element of the model is in exactly
// one of them, except for loads of experts (TensorSpec::follows_loads).
std::vector<HfTensor> hf_tensors(const ModelConfig& model, const HfClass& hf);

// Transposes [rows, columns] to [columns, rows].
std::vector<float> transpose(const float* from, int64_t rows, int64_t columns);

}  // namespace gptrain::checkpoint
