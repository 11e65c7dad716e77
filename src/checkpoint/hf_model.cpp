#include "checkpoint/hf_model.h"

#include <fmt/format.h>
#include <map>
#include <utility>

#include "base/error.h"
#include "config/fields.h"
#include "model/spec/spec.h"

namespace gptrain {
namespace {

enum class Family : uint8_t { gpt2, llama, qwen3 };

struct HfClass {
  Family family;
  const char* architecture;
  const char* model_type;
};

constexpr HfClass classes[] = {{Family::gpt2, "GPT2LMHeadModel", "gpt2"},
                               {Family::llama, "LlamaForCausalLM", "llama"},
                               {Family::qwen3, "Qwen3ForCausalLM", "qwen3"}};

// "model.norm = "rmsnorm""
std::string show_key(const RunConfig& config, const char* path) {
  return fmt::format("{} = {}", path, show_value(find_field(path)->get(config)));
}

// The keys that keep a class from computing this model, each with the value that the class has; empty if it does.
std::string obstacles(const RunConfig& config, Family family) {
  const ModelConfig& model = config.model;
  std::string found;
  const auto need = [&](bool met, const char* path, const std::string& value) {
    if (!met) found += fmt::format("{}{} (must be {})", found.empty() ? "" : ", ", show_key(config, path), value);
  };
  need(model.attention_window == 0, "model.attention_window", "0");
  if (family == Family::gpt2) {
    need(model.norm == NormKind::layernorm, "model.norm", "layernorm");
    need(model.positions == PositionKind::learned, "model.positions", "learned");
    need(!is_gated(model.activation), "model.activation", "gelu_tanh or gelu");
    need(model.bias, "model.bias", "true");
    need(!model.qk_norm, "model.qk_norm", "false");
    need(model.num_kv_heads == model.num_heads, "model.num_kv_heads", fmt::format("{}", model.num_heads));
    return found;
  }
  need(model.norm == NormKind::rmsnorm, "model.norm", "rmsnorm");
  need(model.positions == PositionKind::rope, "model.positions", "rope");
  need(model.activation == ActivationKind::swiglu, "model.activation", "swiglu");
  const bool is_qwen3 = family == Family::qwen3;
  need(model.qk_norm == is_qwen3, "model.qk_norm", is_qwen3 ? "true" : "false");
  if (is_qwen3) need(!model.bias, "model.bias", "false");
  return found;
}

const HfClass& choose_class(const RunConfig& config) {
  std::string all;
  for (const HfClass& candidate : classes) {
    const std::string found = obstacles(config, candidate.family);
    if (found.empty()) return candidate;
    all += fmt::format("\n  {}: {}", candidate.architecture, found);
  }
  throw Error(ExitCode::usage, "no Hugging Face class has this mix of config keys; in the way of{}", all);
}

Json gpt2_config(const ModelConfig& model) {
  return {{"n_layer", model.num_layers},
          {"n_embd", model.hidden_size},
          {"n_head", model.num_heads},
          {"n_inner", model.ffn_hidden_size},
          {"n_positions", model.sequence_length},
          {"activation_function", model.activation == ActivationKind::gelu_tanh ? "gelu_new" : "gelu"},
          {"layer_norm_epsilon", model.norm_eps},
          {"embd_pdrop", model.residual_dropout},
          {"resid_pdrop", model.residual_dropout},
          {"attn_pdrop", model.attention_dropout}};
}

Json llama_config(const ModelConfig& model) {
  // Releases of transformers before 5 read the base of the angles from the first of its two places, later ones from the
  // second.
  return {{"num_hidden_layers", model.num_layers},
          {"hidden_size", model.hidden_size},
          {"num_attention_heads", model.num_heads},
          {"num_key_value_heads", model.num_kv_heads},
          {"head_dim", model.head_size()},
          {"intermediate_size", model.ffn_hidden_size},
          {"max_position_embeddings", model.sequence_length},
          {"hidden_act", "silu"},
          {"rms_norm_eps", model.norm_eps},
          {"rope_theta", model.rope_theta},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", model.rope_theta}}},
          {"attention_bias", model.bias},
          {"attention_dropout", model.attention_dropout}};
}

// The parts of a fused tensor that transformers keeps apart, with their rows; for a tensor that it keeps whole, one
// name and no rows.
using Parts = std::vector<std::pair<std::string, int64_t>>;

// By gptrain's name within a block.
std::map<std::string, Parts> block_names(const ModelConfig& model, Family family) {
  if (family == Family::gpt2) {
    return {{"norm1", {{"ln_1", 0}}}, {"attention.qkv", {{"attn.c_attn", 0}}}, {"attention.out", {{"attn.c_proj", 0}}},
            {"norm2", {{"ln_2", 0}}}, {"ffn.in", {{"mlp.c_fc", 0}}},           {"ffn.out", {{"mlp.c_proj", 0}}}};
  }
  return {{"norm1", {{"input_layernorm", 0}}},
          {"attention.qkv",
           {{"self_attn.q_proj", model.hidden_size},
            {"self_attn.k_proj", model.kv_size()},
            {"self_attn.v_proj", model.kv_size()}}},
          {"attention.q_norm", {{"self_attn.q_norm", 0}}},
          {"attention.k_norm", {{"self_attn.k_norm", 0}}},
          {"attention.out", {{"self_attn.o_proj", 0}}},
          {"norm2", {{"post_attention_layernorm", 0}}},
          {"ffn.in", {{"mlp.gate_proj", model.ffn_hidden_size}, {"mlp.up_proj", model.ffn_hidden_size}}},
          {"ffn.out", {{"mlp.down_proj", 0}}}};
}

// transformers' names of everything outside the blocks, by gptrain's.
std::map<std::string, std::string> outer_names(Family family) {
  if (family == Family::gpt2) {
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

std::vector<HfTensor> list_tensors(const ModelConfig& model, Family family) {
  const ModelSpec spec = make_spec(model);
  const auto outer = outer_names(family);
  const auto in_block = block_names(model, family);
  std::vector<HfTensor> tensors;
  for (const TensorSpec& tensor : spec.tensors) {
    const Unit& unit = spec.units[static_cast<size_t>(tensor.unit)];
    if (unit.kind != UnitKind::block) {
      add_tensor(tensors, tensor, {{outer.at(tensor.name), 0}}, false);
      continue;
    }
    // "blocks.0.ffn.in.weight" is the weight of "ffn.in" in "transformer.h.0." or "model.layers.0.".
    const size_t prefix = fmt::format("blocks.{}.", unit.layer).size();
    const size_t suffix = tensor.name.rfind('.');
    Parts parts = in_block.at(tensor.name.substr(prefix, suffix - prefix));
    const bool is_gpt2 = family == Family::gpt2;
    for (auto& [name, rows] : parts) {
      name = fmt::format("{}.{}.{}{}", is_gpt2 ? "transformer.h" : "model.layers", unit.layer, name,
                         tensor.name.substr(suffix));
    }
    add_tensor(tensors, tensor, std::move(parts), is_gpt2 && tensor.shape.size() == 2);
  }
  return tensors;
}

}  // namespace

HfModel hf_model(const RunConfig& config, DType dtype) {
  const HfClass& chosen = choose_class(config);
  const ModelConfig& model = config.model;
  HfModel result{chosen.architecture, {}, list_tensors(model, chosen.family), {}, {}};
  // The ids of special tokens belong to a tokenizer, which a checkpoint does not name; the classes' own would be wrong.
  result.config = {{"architectures", {chosen.architecture}},
                   {"model_type", chosen.model_type},
                   {"torch_dtype", dtype == DType::f32 ? "float32" : "bfloat16"},
                   {"vocab_size", model.vocab_size},
                   {"tie_word_embeddings", model.tied_head},
                   {"initializer_range", model.init_std},
                   {"bos_token_id", nullptr},
                   {"eos_token_id", nullptr}};
  result.config.update(chosen.family == Family::gpt2 ? gpt2_config(model) : llama_config(model));
  if (chosen.family == Family::llama) result.config["mlp_bias"] = model.bias;
  if (chosen.family != Family::gpt2 && model.residual_dropout > 0) {
    result.left_out.push_back(show_key(config, "model.residual_dropout"));
  }
  if (model.z_loss > 0) result.left_out.push_back(show_key(config, "model.z_loss"));
  if (config.data.mask_documents) {
    result.warning = fmt::format("{}: a {} attends to earlier documents, too; give it one at a time",
                                 show_key(config, "data.mask_documents"), chosen.architecture);
  }
  return result;
}

}  // namespace gptrain
