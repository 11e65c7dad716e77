#include "checkpoint/hf_names.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <utility>

#include "model/spec/spec.h"

namespace gptrain::inline checkpoint {
namespace {

constexpr HfClass classes[] = {{HfArchitecture::gpt2, "GPT2LMHeadModel", "gpt2"},
                               {HfArchitecture::gpt_neo, "GPTNeoForCausalLM", "gpt_neo"},
                               {HfArchitecture::llama, "LlamaForCausalLM", "llama"},
                               {HfArchitecture::mistral, "MistralForCausalLM", "mistral"},
                               {HfArchitecture::ministral, "MinistralForCausalLM", "ministral"},
                               {HfArchitecture::qwen2, "Qwen2ForCausalLM", "qwen2"},
                               {HfArchitecture::qwen3, "Qwen3ForCausalLM", "qwen3"},
                               {HfArchitecture::gemma2, "Gemma2ForCausalLM", "gemma2"},
                               {HfArchitecture::gemma3, "Gemma3ForCausalLM", "gemma3_text"},
                               {HfArchitecture::mixtral, "MixtralForCausalLM", "mixtral"},
                               {HfArchitecture::qwen2_moe, "Qwen2MoeForCausalLM", "qwen2_moe"},
                               {HfArchitecture::qwen3_moe, "Qwen3MoeForCausalLM", "qwen3_moe"}};

// The tensors of transformers that make up one of gptrain's: name and number of rows of each; a tensor that is not
// split has one name and 0 rows.
using Parts = std::vector<std::pair<std::string, int64_t>>;

// Returns transformers' names of a block's tensors, by gptrain's name within the block.
std::map<std::string, Parts> block_names(const ModelConfig& model, const HfClass& hf) {
  if (hf.architecture == HfArchitecture::gpt2) {
    return {{"norm1", {{"ln_1", 0}}}, {"attention.qkv", {{"attn.c_attn", 0}}}, {"attention.out", {{"attn.c_proj", 0}}},
            {"norm2", {{"ln_2", 0}}}, {"ffn.in", {{"mlp.c_fc", 0}}},           {"ffn.out", {{"mlp.c_proj", 0}}}};
  }
  if (hf.architecture == HfArchitecture::gpt_neo) {
    return {{"norm1", {{"ln_1", 0}}},
            {"attention.qkv",
             {{"attn.attention.q_proj", model.q_size()},
              {"attn.attention.k_proj", model.kv_size()},
              {"attn.attention.v_proj", model.kv_size()}}},
            {"attention.out", {{"attn.attention.out_proj", 0}}},
            {"norm2", {{"ln_2", 0}}},
            {"ffn.in", {{"mlp.c_fc", 0}}},
            {"ffn.out", {{"mlp.c_proj", 0}}}};
  }
  return {{"norm1", {{"input_layernorm", 0}}},
          {"attention.qkv",
           {{"self_attn.q_proj", model.q_size()},
            {"self_attn.k_proj", model.kv_size()},
            {"self_attn.v_proj", model.kv_size()}}},
          {"attention.q_norm", {{"self_attn.q_norm", 0}}},
          {"attention.k_norm", {{"self_attn.k_norm", 0}}},
          {"attention.out", {{"self_attn.o_proj", 0}}},
          {"norm1_after", {{"post_attention_layernorm", 0}}},
          {"norm2", {{hf.is_gemma() ? "pre_feedforward_layernorm" : "post_attention_layernorm", 0}}},
          {"norm2_after", {{"post_feedforward_layernorm", 0}}},
          {"ffn.in", {{"mlp.gate_proj", model.ffn_hidden_size}, {"mlp.up_proj", model.ffn_hidden_size}}},
          {"ffn.out", {{"mlp.down_proj", 0}}}};
}

// Returns transformers' names of a tensor of a mixture: "router", "experts.0.in", "experts.0.out", "shared.in",
// "shared.out", "shared.gate".
Parts expert_names(const ModelConfig& model, const HfClass& hf, const std::string& name) {
  const bool is_mixtral = hf.architecture == HfArchitecture::mixtral;
  const std::string of_layer = is_mixtral ? "block_sparse_moe" : "mlp";
  if (name == "router") return {{of_layer + ".gate", 0}};
  if (name == "shared.gate") return {{of_layer + ".shared_expert_gate", 0}};
  if (name == "shared.out") return {{of_layer + ".shared_expert.down_proj", 0}};
  if (name == "shared.in") {
    const int64_t shared_width = model.moe.shared_ffn_hidden_size;
    return {{of_layer + ".shared_expert.gate_proj", shared_width}, {of_layer + ".shared_expert.up_proj", shared_width}};
  }
  const size_t dot = name.rfind('.');
  const std::string expert = fmt::format("{}.{}", of_layer, name.substr(0, dot));
  if (name.substr(dot) == ".out") return {{expert + (is_mixtral ? ".w2" : ".down_proj"), 0}};
  const int64_t width = model.moe.ffn_hidden_size;
  return {{expert + (is_mixtral ? ".w1" : ".gate_proj"), width}, {expert + (is_mixtral ? ".w3" : ".up_proj"), width}};
}

bool is_of_experts(const std::string& name) {
  return name == "router" || name.starts_with("experts.") || name.starts_with("shared.");
}

// Returns transformers' names of the tensors outside the blocks, by gptrain's name.
std::map<std::string, std::string> outer_names(bool is_gpt) {
  if (is_gpt) {
    return {{"embedding.token", "transformer.wte.weight"},
            {"embedding.position", "transformer.wpe.weight"},
            {"head.norm.weight", "transformer.ln_f.weight"},
            {"head.norm.bias", "transformer.ln_f.bias"},
            {"head.weight", "lm_head.weight"}};
  }
  return {{"embedding.token", "model.embed_tokens.weight"},
          {"head.norm.weight", "model.norm.weight"},
          {"head.weight", "lm_head.weight"}};
}

// Adds one of the spec's tensors, as the parts that transformers has of it.
void add_tensor(std::vector<HfTensor>& tensors, const TensorSpec& source, Parts parts, bool transposed) {
  if (parts.front().second == 0) parts.front().second = source.shape[0];
  int64_t row = 0;
  for (const auto& [name, rows] : parts) {
    std::vector<int64_t> shape = source.shape;
    shape[0] = rows;
    if (transposed) std::swap(shape[0], shape[1]);
    tensors.push_back({name, source.name, row, rows, transposed, shape});
    row += rows;
  }
}

}  // namespace

std::span<const HfClass> hf_classes() { return classes; }

std::vector<HfTensor> hf_tensors(const ModelConfig& model, const HfClass& hf) {
  const ModelSpec spec = make_spec(model);
  const auto outer = outer_names(hf.is_gpt());
  const auto in_block = block_names(model, hf);
  std::vector<HfTensor> tensors;
  for (const TensorSpec& tensor : spec.tensors) {
    const Unit& unit = spec.units[tensor.unit];
    if (unit.kind != UnitKind::block) {
      add_tensor(tensors, tensor, {{outer.at(tensor.name), 0}}, false);
      continue;
    }
    if (tensor.follows_loads) continue;  // no part of the function, or refused (hf_config.cpp)
    // "blocks.0.ffn.in.weight" is the weight of "ffn.in" in "transformer.h.0." or "model.layers.0.".
    const size_t prefix = fmt::format("blocks.{}.", unit.layer).size();
    const size_t suffix = tensor.name.rfind('.');
    const std::string inner = tensor.name.substr(prefix, suffix - prefix);
    Parts parts = is_of_experts(inner) ? expert_names(model, hf, inner) : in_block.at(inner);
    for (auto& [name, rows] : parts) {
      name = fmt::format("{}.{}.{}{}", hf.is_gpt() ? "transformer.h" : "model.layers", unit.layer, name,
                         tensor.name.substr(suffix));
    }
    add_tensor(tensors, tensor, std::move(parts), hf.transposes() && tensor.shape.size() == 2);
  }
  return tensors;
}

// Works in square tiles that stay in the cache.
std::vector<float> transpose(const float* from, int64_t rows, int64_t columns) {
  constexpr int64_t tile = 32;
  std::vector<float> to(rows * columns);
  for (int64_t row = 0; row < rows; row += tile) {
    for (int64_t column = 0; column < columns; column += tile) {
      for (int64_t r = row; r < std::min(row + tile, rows); ++r) {
        for (int64_t c = column; c < std::min(column + tile, columns); ++c) {
          to[c * rows + r] = from[r * columns + c];
        }
      }
    }
  }
  return to;
}

}  // namespace gptrain::checkpoint
