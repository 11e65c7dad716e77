#include "checkpoint/hf_config.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/hf_keys.h"
#include "config/fields.h"

namespace gptrain::inline checkpoint {
namespace {

// "model.norm = "rmsnorm""
std::string show_key(const StepConfig& config, const char* path) {
  return fmt::format("{} = {}", path, show_value(value_of(path, config)));
}

// The windows of a model's layers.
struct LayerWindows {
  int64_t width = 0;            // 0: no layer has one
  std::vector<bool> of_layers;  // whether the layer has one

  bool is_even() const { return std::find(of_layers.begin(), of_layers.end(), !of_layers.front()) == of_layers.end(); }
};

// Returns nothing if layers have different windows, or patterns that are no windows.
std::optional<LayerWindows> windows_of(const ModelConfig& model) {
  LayerWindows windows;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const AttentionPattern& pattern = model.attention(layer);
    if (!pattern.one_run()) return std::nullopt;
    windows.of_layers.push_back(pattern.width > 0);
    if (pattern.width == 0) continue;
    if (windows.width > 0 && windows.width != pattern.width) return std::nullopt;
    windows.width = pattern.width;
  }
  return windows;
}

bool has_usual_scale(const ModelConfig& model) {
  return model.score_scale() == 1 / std::sqrt(static_cast<double>(model.head_size));
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
  need(model.attention_softcap == 0, "model.attention_softcap", "0");
  const std::optional<LayerWindows> windows = windows_of(model);
  const char* const pattern = "model.attention_pattern";
  if (hf.has_layer_types() || hf.architecture == HfArchitecture::gpt_neo) {
    need(windows.has_value(), pattern, "made of dense and of band:W with one W");
  } else if (hf.architecture == HfArchitecture::mistral) {
    need(windows && windows->is_even(), pattern, R"(["dense"] or ["band:W"])");
  } else {
    need(windows && windows->width == 0, pattern, R"(["dense"])");
  }
  const char* const scale = "model.attention_scale";
  if (hf.is_gpt()) {
    const bool is_gpt2 = hf.architecture == HfArchitecture::gpt2;
    need(model.mup > 0 || model.score_scale() == 1 || (is_gpt2 && has_usual_scale(model)), scale,
         is_gpt2 ? "0 or 1" : "1");
    need(model.norm == NormKind::layernorm, "model.norm", "layernorm");
    need(model.positions == PositionKind::learned, "model.positions", "learned");
    need(!is_gated(model.activation), "model.activation", "gelu_tanh or gelu");
    need_flag(model.bias, "model.bias", true);
    need_flag(model.qkv_bias, "model.qkv_bias", is_gpt2);
    need_flag(model.qk_norm, "model.qk_norm", false);
    need(model.num_kv_heads == model.num_heads, "model.num_kv_heads", fmt::format("{}", model.num_heads));
    need(model.q_size() == model.hidden_size, "model.head_size", "model.hidden_size / model.num_heads");
    return found;
  }
  const bool is_llama = hf.architecture == HfArchitecture::llama;
  need(model.mup > 0 || has_usual_scale(model), scale, "0");
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

void add_gpt_keys(const ModelConfig& model, const HfClass& hf, Json& config) {
  config["activation_function"] = model.activation == ActivationKind::gelu_tanh ? "gelu_new" : "gelu";
  if (hf.architecture == HfArchitecture::gpt2) {
    config["embd_pdrop"] = model.residual_dropout;
    if (!has_usual_scale(model)) config["scale_attn_weights"] = false;
    return;
  }
  config["embed_dropout"] = model.residual_dropout;
  const LayerWindows windows = windows_of(model).value();
  constexpr int64_t usual_window = 256;
  config["window_size"] = windows.width > 0 ? windows.width : usual_window;
  Json kinds = Json::array();
  for (const bool has_window : windows.of_layers) kinds.push_back(has_window ? "local" : "global");
  config["attention_types"] = Json::array({Json::array({std::move(kinds), 1})});
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

Json layer_types(const LayerWindows& windows) {
  Json kinds = Json::array();
  for (const bool has_window : windows.of_layers) kinds.push_back(has_window ? "sliding_attention" : "full_attention");
  return kinds;
}

void add_llama_keys(const ModelConfig& model, const HfClass& hf, Json& config) {
  config["hidden_act"] = "silu";
  add_rope(model, config);
  const LayerWindows windows = windows_of(model).value();
  const bool has_window = windows.width > 0;
  const Json window = has_window ? Json(windows.width) : Json(nullptr);
  switch (hf.architecture) {
    case HfArchitecture::llama:
      config["attention_bias"] = config["mlp_bias"] = model.bias;
      break;
    case HfArchitecture::mistral:
      config["sliding_window"] = window;
      break;
    case HfArchitecture::ministral:
      config["sliding_window"] = window;
      config["layer_types"] = layer_types(windows);
      break;
    case HfArchitecture::qwen3:
      config["attention_bias"] = false;
      [[fallthrough]];
    default:
      config["use_sliding_window"] = has_window;
      config["sliding_window"] = window;
      // Releases that do not read layer_types take it that windows begin at this layer.
      config["max_window_layers"] =
          std::find(windows.of_layers.begin(), windows.of_layers.end(), true) - windows.of_layers.begin();
      if (!windows.is_even()) config["layer_types"] = layer_types(windows);
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
  if (hf.is_gpt()) {
    add_gpt_keys(model, hf, result.config);
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
