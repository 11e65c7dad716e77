#include "config/presets.h"

namespace gptrain::inline config {
namespace {

// GPT block: LayerNorm, GELU (tanh form), learned positions, biases, tied head.
ModelConfig gpt(const char* name, int64_t num_layers, int64_t hidden_size, int64_t num_heads, int64_t vocab_size,
                int64_t sequence_length) {
  ModelConfig model;
  model.preset = name;
  model.num_layers = num_layers;
  model.hidden_size = hidden_size;
  model.num_heads = num_heads;
  model.vocab_size = vocab_size;
  model.sequence_length = sequence_length;
  return model;
}

struct LlamaShape {
  int64_t num_layers;
  int64_t hidden_size;
  int64_t num_heads;
  int64_t num_kv_heads;     // 0: num_heads
  int64_t ffn_hidden_size;  // 0: the default for SwiGLU
  int64_t sequence_length;
};

// LLaMA block: RMSNorm, RoPE, SwiGLU, no biases, untied head; the LLaMA 1 and 2 vocabulary. LLaMA 1 was published with
// a norm epsilon of 1e-6; here it is LLaMA 2's 1e-5 throughout.
ModelConfig llama(const char* name, const LlamaShape& shape) {
  ModelConfig model = gpt(name, shape.num_layers, shape.hidden_size, shape.num_heads, 32000, shape.sequence_length);
  model.num_kv_heads = shape.num_kv_heads;
  model.ffn_hidden_size = shape.ffn_hidden_size;
  model.norm = NormKind::rmsnorm;
  model.activation = ActivationKind::swiglu;
  model.positions = PositionKind::rope;
  model.bias = false;
  model.tied_head = false;
  return model;
}

// LLaMA 3: a larger vocabulary and another RoPE base.
ModelConfig llama3(const char* name, const LlamaShape& shape) {
  ModelConfig model = llama(name, shape);
  model.vocab_size = 128'256;
  model.rope_theta = 500'000;
  return model;
}

// A llama whose blocks all have experts.
ModelConfig mixtral(const char* name, const LlamaShape& shape) {
  ModelConfig model = llama(name, shape);
  model.rope_theta = 1e6;
  model.moe = {.experts = 8, .top_k = 2};
  return model;
}

// Qwen3's mixtures: 128 experts, of which a token has 8, heads of 128 with norms of queries and keys.
ModelConfig qwen3_moe(const char* name, const LlamaShape& shape, int64_t expert_size) {
  ModelConfig model = llama(name, shape);
  model.vocab_size = 151'936;
  model.rope_theta = 1e6;
  model.norm_eps = 1e-6;
  model.head_size = 128;
  model.qk_norm = true;
  model.moe = {.experts = 128, .top_k = 8, .ffn_hidden_size = expert_size};
  return model;
}

// Grok-1's block: norms before and after each branch, bounded attention scores. Its factors of embeddings and logits
// are left out.
ModelConfig grok(const char* name, const LlamaShape& shape) {
  ModelConfig model = llama(name, shape);
  model.vocab_size = 131'072;
  model.activation = ActivationKind::geglu_tanh;
  model.attention_softcap = 30;
  model.norm_after = true;
  model.tied_head = true;
  model.moe = {.experts = 8, .top_k = 2};
  return model;
}

// The decoder of a Switch Transformer, without its attention to an encoder: widths, heads of 64, T5's vocabulary, and
// one expert for each token. It has RoPE and GELU here, where T5 has relative positions and ReLU.
ModelConfig switch_decoder(const char* name, const LlamaShape& shape, int64_t experts, int64_t every) {
  ModelConfig model = llama(name, shape);
  model.vocab_size = 32'128;
  model.head_size = 64;
  model.activation = ActivationKind::gelu_tanh;
  model.tied_head = true;
  model.moe = {.experts = experts, .top_k = 1, .every = every, .first = every - 1, .renormalise = false, .z_loss = 0};
  return model;
}

std::vector<ModelConfig> table() {
  return {
      // Radford et al., "Language models are unsupervised multitask learners" (2019), sizes of the released weights.
      gpt("gpt2-124m", 12, 768, 12, 50257, 1024),
      gpt("gpt2-355m", 24, 1024, 16, 50257, 1024),
      gpt("gpt2-774m", 36, 1280, 20, 50257, 1024),
      gpt("gpt2-1.5b", 48, 1600, 25, 50257, 1024),

      // Shoeybi et al., arXiv 1909.08053, table 2: GPT-2 with 8.3 billion parameters, heads of 128.
      gpt("gpt2-8.3b", 72, 3072, 24, 50257, 1024),
      // Turing-NLG (Rosset, 2020): layers, hidden size and heads as announced, and a sequence of 1024 tokens.
      gpt("turing-nlg-17b", 78, 4256, 28, 50257, 1024),

      // Brown et al., arXiv 2005.14165, table 2.1, with dense attention in every layer. Two rows of that table do not
      // multiply out: 1.3B (24 heads of 128 in 2048) has 16 heads here, 13B (hidden 5140) has 5120.
      gpt("gpt3-125m", 12, 768, 12, 50257, 2048),
      gpt("gpt3-350m", 24, 1024, 16, 50257, 2048),
      gpt("gpt3-760m", 24, 1536, 16, 50257, 2048),
      gpt("gpt3-1.3b", 24, 2048, 16, 50257, 2048),
      gpt("gpt3-2.7b", 32, 2560, 32, 50257, 2048),
      gpt("gpt3-6.7b", 32, 4096, 32, 50257, 2048),
      gpt("gpt3-13b", 40, 5120, 40, 50257, 2048),
      gpt("gpt3-175b", 96, 12288, 96, 50257, 2048),

      // Narayanan et al., arXiv 2104.04473, table 1.
      gpt("megatron-1.7b", 24, 2304, 24, 51200, 2048),
      gpt("megatron-3.6b", 30, 3072, 32, 51200, 2048),
      gpt("megatron-7.5b", 36, 4096, 32, 51200, 2048),
      gpt("megatron-18.4b", 40, 6144, 48, 51200, 2048),
      gpt("megatron-39.1b", 48, 8192, 64, 51200, 2048),
      gpt("megatron-76.1b", 60, 10240, 80, 51200, 2048),
      gpt("megatron-145.6b", 80, 12288, 96, 51200, 2048),
      gpt("megatron-310.1b", 96, 16384, 128, 51200, 2048),
      gpt("megatron-529.6b", 105, 20480, 128, 51200, 2048),
      gpt("megatron-1008b", 128, 25600, 160, 51200, 2048),

      // LLaMA-160M of SpecInfer, arXiv 2305.09781.
      llama("llama-160m", {12, 768, 12, 0, 3072, 2048}),
      // Layers, width and heads of Pythia 410M, arXiv 2304.01373, with the LLaMA block.
      llama("llama-410m", {24, 1024, 16, 0, 0, 2048}),
      // TinyLlama 1.1B, arXiv 2401.02385.
      llama("llama-1b", {22, 2048, 32, 4, 5632, 2048}),
      // OpenLLaMA 3B (Geng and Liu, 2023).
      llama("llama-3b", {26, 3200, 32, 0, 8640, 2048}),
      // Touvron et al., LLaMA, arXiv 2302.13971, table 2; FFN widths of the released weights.
      llama("llama-7b", {32, 4096, 32, 0, 11008, 2048}),
      llama("llama-13b", {40, 5120, 40, 0, 13824, 2048}),
      llama("llama-30b", {60, 6656, 52, 0, 17920, 2048}),
      llama("llama-65b", {80, 8192, 64, 0, 22016, 2048}),
      // Touvron et al., LLaMA 2, arXiv 2307.09288.
      llama("llama-70b", {80, 8192, 64, 8, 28672, 4096}),
      // Grattafiori et al., LLaMA 3, arXiv 2407.21783, table 3.
      llama3("llama3-8b", {32, 4096, 32, 8, 14336, 8192}),
      llama3("llama3-70b", {80, 8192, 64, 8, 28672, 8192}),
      // Jiang et al., Mixtral of experts, arXiv 2401.04088, table 1; Mistral AI (2024): shape of the released weights.
      mixtral("mixtral-8x7b", {32, 4096, 32, 8, 14336, 32768}),
      mixtral("mixtral-8x22b", {56, 6144, 48, 8, 16384, 65536}),
      // Yang et al., Qwen3, arXiv 2505.09388, with the 4,096 tokens of its first stage; widths of the released weights.
      qwen3_moe("qwen3-30b-a3b", {48, 2048, 32, 4, 6144, 4096}, 768),
      qwen3_moe("qwen3-235b-a22b", {94, 4096, 64, 4, 12288, 4096}, 1536),
      // xAI, Grok-1 (2024): shape of the released weights.
      grok("grok-1-314b", {64, 6144, 48, 8, 32768, 8192}),
      // Fedus et al., Switch Transformers, arXiv 2101.03961, table 9; Google (2022): shape of the released weights.
      switch_decoder("switch-base-8-decoder", {12, 768, 12, 0, 3072, 512}, 8, 2),
      switch_decoder("switch-c-1.6t-decoder", {15, 2080, 32, 0, 6144, 512}, 2048, 1),
  };
}

}  // namespace

std::span<const ModelConfig> presets() {
  static const std::vector<ModelConfig> all = table();
  return all;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const ModelConfig& preset : presets()) names.push_back(preset.preset);
  return names;
}

}  // namespace gptrain::config
