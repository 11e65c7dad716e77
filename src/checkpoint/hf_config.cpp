#include "checkpoint/hf_config.h"

#include <fmt/format.h>
#include <utility>

#include "base/error.h"
#include "checkpoint/hf_keys.h"
#include "config/fields.h"

namespace gptrain::inline checkpoint {
namespace {

// "model.norm = "rmsnorm""
std::string show_key(const StepConfig& config, const char* path) {
  return fmt::format("{} = {}", path, show_value(value_of(path, config)));
}

// Returns the keys that prevent a class from computing this model, each with the class's value; empty if there are
// none.
std::string obstacles(const StepConfig& config, const HfClass& hf) {
  const ModelConfig& model = config.model;
  std::string found;
  const auto need = [&](bool met, const char* path, const std::string& value) {
    if (!met) found += fmt::format("{}{} (must be {})", found.empty() ? "" : ", ", show_key(config, path), value);
  };
  const auto need_flag = [&](bool actual, const char* path, bool value) {
    need(actual == value, path, value ? "true" : "false");
  };
  need(model.mup == 0, "model.mup", "0");
  if (hf.is_gpt2()) {
    need(model.attention_window == 0, "model.attention_window", "0");
    need(model.norm == NormKind::layernorm, "model.norm", "layernorm");
    need(model.positions == PositionKind::learned, "model.positions", "learned");
    need(!is_gated(model.activation), "model.activation", "gelu_tanh or gelu");
    need_flag(model.bias, "model.bias", true);
    need_flag(model.qkv_bias, "model.qkv_bias", true);
    need_flag(model.qk_norm, "model.qk_norm", false);
    need(model.num_kv_heads == model.num_heads, "model.num_kv_heads", fmt::format("{}", model.num_heads));
    need(model.q_size() == model.hidden_size, "model.head_size", "model.hidden_size / model.num_heads");
    return found;
  }
  const bool is_llama = hf.architecture == HfArchitecture::llama;
  if (is_llama) need(model.attention_window == 0, "model.attention_window", "0");
  need(model.norm == NormKind::rmsnorm, "model.norm", "rmsnorm");
  need(model.positions == PositionKind::rope, "model.positions", "rope");
  need(model.activation == ActivationKind::swiglu, "model.activation", "swiglu");
  need_flag(model.qk_norm, "model.qk_norm", hf.architecture == HfArchitecture::qwen3);
  if (!is_llama) need_flag(model.bias, "model.bias", false);
  need_flag(model.qkv_bias, "model.qkv_bias", is_llama ? model.bias : hf.architecture == HfArchitecture::qwen2);
  return found;
}

const HfClass& choose_class(const StepConfig& config) {
  std::string all;
  for (const HfClass& candidate : hf_classes()) {
    const std::string found = obstacles(config, candidate);
    if (found.empty()) return candidate;
    all += fmt::format("\n  {}: {}", candidate.name, found);
  }
  throw Error(ExitCode::usage, "no Hugging Face class has this mix of config keys; in the way of{}", all);
}

void add_gpt2_keys(const ModelConfig& model, Json& config) {
  config["activation_function"] = model.activation == ActivationKind::gelu_tanh ? "gelu_new" : "gelu";
  config["embd_pdrop"] = model.residual_dropout;
}

// Adds the RoPE keys twice: releases of transformers before 5 read the base and scaling of the angles from separate
// keys, later ones from one object.
void add_rope(const ModelConfig& model, Json& config) {
  Json scaling = {{"rope_type", "default"}};
  if (model.rope_scaling != RopeScaling::none) {
    const bool is_llama3 = model.rope_scaling == RopeScaling::llama3;
    scaling = {{"rope_type", is_llama3 ? "llama3" : "linear"}, {"factor", model.rope_factor}};
    if (is_llama3) {
      scaling["low_freq_factor"] = model.rope_low_freq_factor;
      scaling["high_freq_factor"] = model.rope_high_freq_factor;
      scaling["original_max_position_embeddings"] = model.rope_original_length;
    }
  }
  config["rope_theta"] = model.rope_theta;
  scaling["rope_theta"] = model.rope_theta;
  if (model.rope_scaling != RopeScaling::none) config["rope_scaling"] = scaling;
  config["rope_parameters"] = std::move(scaling);
}

void add_llama_keys(const ModelConfig& model, const HfClass& hf, Json& config) {
  config["hidden_act"] = "silu";
  add_rope(model, config);
  const bool has_window = model.attention_window > 0;
  const Json window = has_window ? Json(model.attention_window) : Json(nullptr);
  switch (hf.architecture) {
    case HfArchitecture::llama:
      config["attention_bias"] = config["mlp_bias"] = model.bias;
      break;
    case HfArchitecture::mistral:
      config["sliding_window"] = window;
      break;
    case HfArchitecture::qwen3:
      config["attention_bias"] = false;
      [[fallthrough]];
    default:
      config["use_sliding_window"] = has_window;
      config["sliding_window"] = window;
      config["max_window_layers"] = has_window ? 0 : model.num_layers;
  }
}

}  // namespace

HfModel hf_model(const StepConfig& config, DType dtype) {
  const HfClass& hf = choose_class(config);
  const ModelConfig& model = config.model;
  HfModel result{hf, {}, hf_tensors(model, hf), {}, {}};
  result.config = {{"architectures", {hf.name}},
                   {"model_type", hf.model_type},
                   {"torch_dtype", dtype == DType::f32   ? "float32"
                                   : dtype == DType::f16 ? "float16"
                                                         : "bfloat16"}};
  for (const HfKey& key : hf_keys(hf)) result.config[key.name] = value_of(key.path, config);
  // The ids of special tokens belong to a tokenizer; the classes' own would be wrong.
  result.config["bos_token_id"] = result.config["eos_token_id"] = nullptr;
  if (hf.is_gpt2()) {
    add_gpt2_keys(model, result.config);
  } else {
    add_llama_keys(model, hf, result.config);
    if (model.residual_dropout > 0) result.left_out.push_back(show_key(config, "model.residual_dropout"));
  }
  if (model.z_loss > 0) result.left_out.push_back(show_key(config, "model.z_loss"));
  if (config.data.mask_documents) {
    result.warning = fmt::format("{}: a {} attends to earlier documents, too; give it one at a time",
                                 show_key(config, "data.mask_documents"), hf.name);
  }
  return result;
}

}  // namespace gptrain::checkpoint
