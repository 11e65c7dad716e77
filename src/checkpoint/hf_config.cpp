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

// The rotation angles of a selection of layers: those with a window, those without one, or all.
struct LayerAngles {
  RotaryAngles angles;  // angles of the first selected layer; default angles if none is selected
  bool is_even = true;  // the layers have equal angles
};

LayerAngles angles_of(const ModelConfig& model, std::optional<bool> with_window = std::nullopt) {
  std::optional<RotaryAngles> first;
  LayerAngles result;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    if (with_window && with_window != (model.attention(layer).width > 0)) continue;
    if (!first) first = result.angles = model.rope(layer);
    result.is_even = result.is_even && model.rope(layer) == first;
  }
  return result;
}

// Returns the factor of the token embedding in Gemma's classes: the square root of the hidden size, rounded as their
// weights are.
float gemma_embedding_scale(const ModelConfig& model, DType dtype) {
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(model.hidden_size)));
  if (dtype == DType::bf16) return to_float(to_bf16(root));
  return dtype == DType::f16 ? to_float(to_f16(root)) : root;
}

// Returns query_pre_attn_scalar of Gemma's classes, a whole number whose inverse root is the factor of the scores; 0 if
// there is none.
int64_t gemma_score_scalar(const ModelConfig& model) {
  const double scale = model.score_scale();
  const double scalar = std::round(std::fmin(1 / (scale * scale), 1e15));
  return std::abs(scale * std::sqrt(scalar) - 1) < 1e-12 ? static_cast<int64_t>(scalar) : 0;
}

// Collects the keys that prevent a class from computing a model, each with the class's value.
class Obstacles {
 public:
  Obstacles(const StepConfig& config, const HfClass& hf, DType dtype)
      : config_(config), model_(config.model), hf_(hf), dtype_(dtype), windows_(windows_of(config.model)) {}

  // Returns an empty text if there are none.
  std::string find() {
    need(model_.mup == 0, "model.mup", "0");
    find_in_attention();
    if (hf_.is_gemma()) {
      find_in_gemma();
    } else {
      need(model_.embedding_scale == 1, "model.embedding_scale", "1");
      need(model_.logit_softcap == 0, "model.logit_softcap", "0");
    }
    if (hf_.has_experts()) {
      find_in_experts();
    } else {
      need(!model_.moe.is_on(), "model.moe", "{}");
    }
    need_flag(model_.norm_offset, "model.norm_offset", hf_.is_gemma());
    need_flag(model_.norm_after, "model.norm_after", hf_.is_gemma());
    if (hf_.is_gpt()) {
      find_in_gpt();
    } else {
      find_in_llama();
    }
    return std::move(found_);
  }

 private:
  void need(bool met, const char* path, const std::string& value) {
    if (!met) found_ += fmt::format("{}{} (must be {})", found_.empty() ? "" : ", ", show_key(config_, path), value);
  }
  void need_flag(bool actual, const char* path, bool value) { need(actual == value, path, value ? "true" : "false"); }

  void find_in_attention() {
    if (hf_.architecture != HfArchitecture::gemma2) need(model_.attention_softcap == 0, "model.attention_softcap", "0");
    need_flag(model_.attention_sinks, "model.attention_sinks", false);
    const char* const pattern = "model.attention_pattern";
    if (hf_.architecture == HfArchitecture::qwen2_moe) {  // its windows are in other layers from release to release
      need(windows_ && windows_->width == 0, pattern, R"(["dense"])");
    } else if (hf_.has_layer_types() || hf_.architecture == HfArchitecture::gpt_neo) {
      need(windows_.has_value(), pattern, "made of dense and of band:W with one W");
    } else if (hf_.architecture == HfArchitecture::mistral || hf_.has_experts()) {
      need(windows_ && windows_->is_even(), pattern, R"(["dense"] or ["band:W"])");
    } else {
      need(windows_ && windows_->width == 0, pattern, R"(["dense"])");
    }
  }

  void find_in_gpt() {
    const bool is_gpt2 = hf_.architecture == HfArchitecture::gpt2;
    need(model_.mup > 0 || model_.score_scale() == 1 || (is_gpt2 && has_usual_scale(model_)), "model.attention_scale",
         is_gpt2 ? "0 or 1" : "1");
    need(model_.norm == NormKind::layernorm, "model.norm", "layernorm");
    need(model_.positions == PositionKind::learned, "model.positions", "learned");
    need(!is_gated(model_.activation), "model.activation", "gelu_tanh or gelu");
    need_flag(model_.bias, "model.bias", true);
    need_flag(model_.qkv_bias, "model.qkv_bias", is_gpt2);
    need_flag(model_.qk_norm, "model.qk_norm", false);
    need(model_.num_kv_heads == model_.num_heads, "model.num_kv_heads", fmt::format("{}", model_.num_heads));
    need(model_.q_size() == model_.hidden_size, "model.head_size", "model.hidden_size / model.num_heads");
  }

  void find_in_llama() {
    const bool is_llama = hf_.architecture == HfArchitecture::llama;
    if (!hf_.is_gemma()) need(model_.mup > 0 || has_usual_scale(model_), "model.attention_scale", "0");
    need(model_.norm == NormKind::rmsnorm, "model.norm", "rmsnorm");
    need(model_.positions == PositionKind::rope, "model.positions", "rope");
    if (model_.positions == PositionKind::rope) find_in_rope();
    if (hf_.is_gemma()) {
      need(is_gated(model_.activation), "model.activation", "geglu_tanh, geglu or swiglu");
    } else {
      need(model_.activation == ActivationKind::swiglu, "model.activation", "swiglu");
    }
    need_flag(model_.qk_norm, "model.qk_norm",
              hf_.architecture == HfArchitecture::qwen3 || hf_.architecture == HfArchitecture::qwen3_moe ||
                  hf_.architecture == HfArchitecture::gemma3);
    if (!is_llama) need_flag(model_.bias, "model.bias", false);
    if (hf_.architecture != HfArchitecture::qwen2_moe)
      need_flag(model_.qkv_bias, "model.qkv_bias", is_llama ? model_.bias : hf_.architecture == HfArchitecture::qwen2);
  }

  void find_in_rope() {
    const auto& rotates = model_.positions_pattern;
    need(std::find(rotates.begin(), rotates.end(), LayerPositions::none) == rotates.end(), "model.positions_pattern",
         R"(["rope"])");
    const char* const thetas = "model.rope_theta_pattern";
    const char* const scalings = "model.rope_scaling_pattern";
    const char* const pattern = model_.rope_theta_pattern.empty() ? scalings : thetas;
    if (hf_.architecture != HfArchitecture::gemma3)
      return need(angles_of(model_).is_even, pattern, "the same in all layers");
    const LayerAngles local = angles_of(model_, true), global = angles_of(model_, false);
    need(local.is_even && global.is_even, pattern, "the same in all layers with a window, and in all others");
    need(local.angles.scaling == RopeScaling::none,
         model_.rope_scaling_pattern.empty() ? "model.rope_scaling" : scalings, "none in layers with a window");
  }

  void find_in_experts() {
    const MoeConfig& moe = model_.moe;
    if (!moe.is_on()) return need(false, "model.moe", "given");
    const bool is_mixtral = hf_.architecture == HfArchitecture::mixtral;
    const bool is_qwen2 = hf_.architecture == HfArchitecture::qwen2_moe;
    const bool has_shared = moe.shared > 0 && moe.shared_gate == SharedGate::sigmoid;
    need(moe.score == RouterScore::softmax && moe.scale == 1 && (is_qwen2 ? has_shared : moe.shared == 0) &&
             (!is_mixtral || (moe.renormalise && moe.first == 0 && moe.every == 1)),
         "model.moe",
         is_mixtral ? "in all blocks, with score softmax, renormalise true, scale 1 and no shared experts"
         : is_qwen2 ? "with score softmax, scale 1, and shared experts with shared_gate sigmoid"
                    : "with score softmax, scale 1 and no shared experts");
    need(moe.router_bias_rate == 0 && moe.groups == 1 && moe.capacity == 0, "model.moe",
         "with router_bias_rate 0, groups 1 and capacity 0");
  }

  void find_in_gemma() {
    const auto scale = static_cast<float>(model_.embedding_scale);
    need(scale == gemma_embedding_scale(model_, DType::f32) || scale == gemma_embedding_scale(model_, dtype_),
         "model.embedding_scale",
         fmt::format("{}, the square root of model.hidden_size, or with --dtype bf16 {}",
                     std::sqrt(static_cast<double>(model_.hidden_size)), gemma_embedding_scale(model_, DType::bf16)));
    need(model_.hidden_size % model_.num_heads == 0, "model.num_heads", "a divisor of model.hidden_size");
    need(gemma_score_scalar(model_) > 0, "model.attention_scale", "1 / the root of a whole number");
  }

  const StepConfig& config_;
  const ModelConfig& model_;
  const HfClass& hf_;
  const DType dtype_;
  const std::optional<LayerWindows> windows_;
  std::string found_;
};

const HfClass& choose_class(const StepConfig& config, DType dtype) {
  Lines all;
  for (const HfClass& candidate : hf_classes()) {
    const std::string found = Obstacles(config, candidate, dtype).find();
    if (found.empty()) return candidate;
    all += Lines("\n  {}: {}", candidate.name, found);
  }
  throw Error(ExitCode::usage,
              "no Hugging Face class has this mix of config keys; for each class, the keys in the way:{}", all);
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

// Returns the angles as transformers' rope_parameters.
Json rope_parameters(const ModelConfig& model, const RotaryAngles& angles) {
  Json parameters = {{"rope_type", "default"}, {"rope_theta", angles.theta}};
  if (angles.scaling == RopeScaling::none) return parameters;
  parameters["rope_type"] = rope_scaling_names[angles.scaling];
  parameters["factor"] = angles.factor;
  if (angles.scaling == RopeScaling::llama3) {
    parameters["low_freq_factor"] = angles.low_freq_factor;
    parameters["high_freq_factor"] = angles.high_freq_factor;
    parameters["original_max_position_embeddings"] = model.rope_original_length;
  }
  return parameters;
}

// Adds the RoPE keys twice: releases of transformers before 5 read the base and scaling of the angles from separate
// keys, later ones from one object. Gemma 3 has angles of their own for layers with a window.
void add_rope(const ModelConfig& model, const HfClass& hf, Json& config) {
  const bool is_gemma3 = hf.architecture == HfArchitecture::gemma3;
  const RotaryAngles angles = (is_gemma3 ? angles_of(model, false) : angles_of(model)).angles;
  Json parameters = rope_parameters(model, angles);
  config["rope_theta"] = angles.theta;
  if (angles.scaling != RopeScaling::none) config["rope_scaling"] = parameters;
  if (is_gemma3) {
    const RotaryAngles local = angles_of(model, true).angles;
    config["rope_local_base_freq"] = local.theta;
    parameters = {{"full_attention", std::move(parameters)}, {"sliding_attention", rope_parameters(model, local)}};
  }
  config["rope_parameters"] = std::move(parameters);
}

Json layer_types(const LayerWindows& windows) {
  Json kinds = Json::array();
  for (const bool has_window : windows.of_layers) kinds.push_back(has_window ? "sliding_attention" : "full_attention");
  return kinds;
}

void add_gemma_keys(const ModelConfig& model, const HfClass& hf, Json& config) {
  config["hidden_activation"] = model.activation == ActivationKind::geglu_tanh ? "gelu_pytorch_tanh"
                                : model.activation == ActivationKind::geglu    ? "gelu"
                                                                               : "silu";
  add_rope(model, hf, config);
  const LayerWindows windows = windows_of(model).value();
  constexpr int64_t usual_window = 4096;
  config["sliding_window"] = windows.width > 0 ? windows.width : usual_window;
  config["layer_types"] = layer_types(windows);
  // Releases that do not read layer_types take it that each layer at a multiple of this has no window.
  for (int64_t period = 1; period <= model.num_layers + 1 && hf.architecture == HfArchitecture::gemma3; ++period) {
    bool fits = true;
    for (int64_t layer = 0; layer < model.num_layers; ++layer)
      fits = fits && windows.of_layers[layer] == ((layer + 1) % period != 0);
    if (fits) config["sliding_window_pattern"] = period;
  }
  config["query_pre_attn_scalar"] = gemma_score_scalar(model);
  config["attention_bias"] = false;
  const auto cap = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
  config["final_logit_softcapping"] = cap(model.logit_softcap);
  config["attn_logit_softcapping"] = cap(model.attention_softcap);
  config["pad_token_id"] = nullptr;  // the class's own would keep a token's embedding from learning
}

void add_qwen_experts(const ModelConfig& model, Json& config) {
  config["num_experts"] = model.moe.experts;
  config["num_experts_per_tok"] = model.moe.top_k;
  config["moe_intermediate_size"] = model.moe.ffn_hidden_size;
  config["norm_topk_prob"] = model.moe.renormalise;
  if (model.moe.shared > 0) config["shared_expert_intermediate_size"] = model.moe.shared_ffn_hidden_size;
  config["decoder_sparse_step"] = 1;
  Json dense = Json::array();
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    if (!model.moe.is_at(layer)) dense.push_back(layer);
  }
  config["mlp_only_layers"] = std::move(dense);
}

void add_llama_keys(const ModelConfig& model, const HfClass& hf, Json& config) {
  config["hidden_act"] = "silu";
  add_rope(model, hf, config);
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
    case HfArchitecture::mixtral:
      config["sliding_window"] = window;
      config["intermediate_size"] = model.moe.ffn_hidden_size;
      config["num_local_experts"] = model.moe.experts;
      config["num_experts_per_tok"] = model.moe.top_k;
      break;
    case HfArchitecture::qwen2_moe:
      config["use_sliding_window"] = false;
      config["qkv_bias"] = model.qkv_bias;
      add_qwen_experts(model, config);
      break;
    case HfArchitecture::qwen3_moe:
      config["attention_bias"] = false;
      config["use_sliding_window"] = has_window;
      config["sliding_window"] = window;
      add_qwen_experts(model, config);
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
  const HfClass& hf = choose_class(config, dtype);
  const ModelConfig& model = config.model;
  HfModel result{.hf = hf, .config = {}, .tensors = hf_tensors(model, hf), .left_out = {}, .warning = {}};
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
    (hf.is_gemma() ? add_gemma_keys : add_llama_keys)(model, hf, result.config);
    if (model.residual_dropout > 0) result.left_out.push_back(show_key(config, "model.residual_dropout"));
  }
  if (model.z_loss > 0) result.left_out.push_back(show_key(config, "model.z_loss"));
  if (model.moe.is_on() && (model.moe.aux_loss > 0 || model.moe.z_loss > 0))
    result.left_out.push_back(
        fmt::format("model.moe.aux_loss = {}, model.moe.z_loss = {}", model.moe.aux_loss, model.moe.z_loss));
  if (config.data.mask_documents) {
    result.warning = fmt::format("{}: a {} attends to earlier documents, too; give it one at a time",
                                 show_key(config, "data.mask_documents"), hf.name);
  }
  return result;
}

}  // namespace gptrain::checkpoint
