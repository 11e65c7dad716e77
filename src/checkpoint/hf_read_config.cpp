#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/attention_pattern.h"
#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"
#include "checkpoint/files.h"
#include "checkpoint/hf_class.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/hf_expert_layers.h"
#include "checkpoint/hf_keys.h"
#include "config/faults.h"

namespace gptrain::inline checkpoint {
namespace {

constexpr int64_t most_layers = 10'000;  // a config's reader refuses more

class HfConfigReader {
 public:
  HfConfigReader(const Json& document, const HfClass& hf)
      : document_(document), result_{hf, Json::object(), {}, {}, {}} {}

  HfDescription read() {
    read_direct_keys();
    if (result_.hf.is_gpt()) {
      read_gpt();
    } else if (result_.hf.is_gemma()) {
      read_gemma();
    } else {
      read_llama();
    }
    refuse_given("quantization_config", "quantized weights are not read");
    read_end_token();
    for (const auto& [name, value] : document_.items()) {
      const auto keys = hf_idle_keys();
      const bool idle = std::find(keys.begin(), keys.end(), name) != keys.end();
      if (!idle && !known_.contains(name)) result_.unknown.push_back(name);
    }
    if (!faults_.empty()) throw Error(ExitCode::checkpoint, Lines::join(faults_, "\n  "));
    return std::move(result_);
  }

 private:
  // Returns null if the key is missing or null.
  const Json& value(const std::string& name) {
    static const Json none;
    known_.insert(name);
    const auto found = document_.find(name);
    return found == document_.end() ? none : *found;
  }

  void refuse(const std::string& name, const Json& value, const std::string& rule) {
    faults_.push_back(fmt::format("{} = {}: {}", printable(name), printable(show_value(value)), rule));
  }
  void require(const std::string& name, const Json& only, const std::string& rule) {
    const Json& given = value(name);
    if (!given.is_null() && given != only) refuse(name, given, rule);
  }
  void refuse_given(const std::string& name, const std::string& rule) { require(name, nullptr, rule); }
  bool flag(const std::string& name, bool usual) {
    const Json& given = value(name);
    if (given.is_null()) return usual;
    if (!given.is_boolean()) refuse(name, given, "must be true or false");
    return given == true;
  }
  int64_t count(const std::string& name, int64_t usual) {
    const Json& given = value(name);
    if (given.is_null()) return usual;
    constexpr uint64_t most = uint64_t{1} << 40;
    if (given.is_number_unsigned() && given.get<uint64_t>() <= most) return given.get<int64_t>();
    refuse(name, given, "must be a count");
    return usual;
  }

  void set(const std::string& path, Json value) { result_.model[path.substr(path.find('.') + 1)] = std::move(value); }

  void read_direct_keys() {
    for (const HfKey& key : hf_keys(result_.hf)) {
      const Json& given = value(key.name);
      if (!given.is_null()) {
        set(key.path, given);
      } else if (key.absent == HfKey::Absent::number) {
        set(key.path, key.number);
      } else if (key.absent == HfKey::Absent::flag) {
        set(key.path, key.flag);
      } else if (key.absent == HfKey::Absent::refused) {
        faults_.push_back(fmt::format("{} must be given", key.name));
      }
    }
  }

  void read_gpt() {
    const bool is_gpt2 = result_.hf.architecture == HfArchitecture::gpt2;
    set("model.norm", "layernorm");
    set("model.positions", "learned");
    set("model.bias", true);
    const Json activation = document_.value("activation_function", Json("gelu_new"));
    known_.insert("activation_function");
    if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
      set("model.activation", "gelu_tanh");
    } else if (activation == "gelu") {
      set("model.activation", "gelu");
    } else {
      refuse("activation_function", activation, "gptrain has gelu_new, gelu_pytorch_tanh and gelu");
    }
    if (is_gpt2) {
      if (!flag("scale_attn_weights", true)) set("model.attention_scale", 1);
      require("scale_attn_by_inverse_layer_idx", false, "gptrain scales attention alike in all layers");
      require("add_cross_attention", false, "gptrain has no cross-attention");
    } else {
      set("model.qkv_bias", false);
      set("model.attention_scale", 1);
      read_attention_types();
    }
    const char* const embedding = is_gpt2 ? "embd_pdrop" : "embed_dropout";
    const Json& embedding_dropout = value(embedding);
    if (const Json& taken = result_.model["residual_dropout"];
        !embedding_dropout.is_null() && embedding_dropout != taken) {
      result_.notes.push_back(fmt::format("{} = {}: model.residual_dropout is {}, {}", embedding,
                                          show_value(embedding_dropout), is_gpt2 ? "resid_pdrop" : "resid_dropout",
                                          show_value(taken)));
    }
  }

  // Reads [[["global", "local"], 12]]: kinds of layers, and how often they are repeated.
  void read_attention_types() {
    const Json usual = Json::array({Json::array({Json::array({"global", "local"}), 12})});
    const Json& given = value("attention_types");
    const Json& types = given.is_null() ? usual : given;
    constexpr const char* rule = "must be a list of pairs of a list of global and local, and a count";
    Json kinds = Json::array();
    const int64_t layers = std::min(count("num_layers", 0), most_layers);
    if (!types.is_array()) return refuse("attention_types", types, rule);
    for (const Json& group : types) {
      const bool is_pair = group.is_array() && group.size() == 2 && group[0].is_array() && !group[0].empty() &&
                           group[1].is_number_unsigned();
      if (!is_pair) return refuse("attention_types", types, rule);
      for (uint64_t i = 0; i < group[1].get<uint64_t>() && std::ssize(kinds) <= layers; ++i)
        kinds.insert(kinds.end(), group[0].begin(), group[0].end());
    }
    if (const Json& expanded = value("attention_layers"); !expanded.is_null() && expanded != kinds)
      refuse("attention_layers", expanded, "contradicts attention_types");
    read_layer_kinds("attention_types", types, kinds, {"global", "local"}, count("window_size", 256));
  }

  // Sets the attention pattern from a word for each layer, of which the second names layers with the window.
  void read_layer_kinds(const std::string& name, const Json& given, const Json& kinds,
                        const std::array<const char*, 2>& words, int64_t window) {
    const int64_t layers = count(result_.hf.is_gpt() ? "num_layers" : "num_hidden_layers", 0);
    if (!kinds.is_array() || std::ssize(kinds) != layers)
      return refuse(name, given, fmt::format("must name the kind of each of {} layers", layers));
    std::vector<bool> has_window;
    for (const Json& kind : kinds) {
      if (kind != words[0] && kind != words[1])
        return refuse(name, given, fmt::format("gptrain has {} and {}", words[0], words[1]));
      if (kind == words[1] && window == 0)
        return refuse(name, given, "gives layers a window, but the config has no width for it");
      has_window.push_back(kind == words[1]);
    }
    set_windows(has_window, window);
  }

  void set_windows(std::vector<bool> has_window, int64_t window) {
    const int64_t length = count("max_position_embeddings", 0);
    const bool any = std::find(has_window.begin(), has_window.end(), true) != has_window.end();
    if (result_.hf.architecture == HfArchitecture::gemma3) {
      window = std::min(window, length);  // layers with a window have angles of their own, also if it hides nothing
    } else if (any && window > length) {
      result_.notes.push_back(fmt::format("{} = {}: has no effect within {} tokens",
                                          result_.hf.is_gpt() ? "window_size" : "sliding_window", window, length));
      has_window.assign(has_window.size(), false);
    }
    size_t period = 1;
    const auto repeats = [&] {
      for (size_t layer = period; layer < has_window.size(); ++layer)
        if (has_window[layer] != has_window[layer - period]) return false;
      return true;
    };
    while (!repeats()) ++period;
    windows_of_words_ = has_window;
    windows_of_words_.resize(std::min(period, has_window.size()));
    if (period == 1) return set("model.attention_window", !has_window.empty() && has_window[0] ? window : 0);
    Json words = Json::array();
    for (size_t layer = 0; layer < period; ++layer)
      words.push_back(attention_pattern_word(window_pattern(has_window[layer] ? window : 0)));
    set("model.attention_pattern", std::move(words));
  }

  void read_llama() {
    const HfArchitecture architecture = result_.hf.architecture;
    set("model.norm", "rmsnorm");
    set("model.positions", "rope");
    set("model.activation", "swiglu");
    const bool is_qwen3 = architecture == HfArchitecture::qwen3 || architecture == HfArchitecture::qwen3_moe;
    set("model.qk_norm", is_qwen3);
    const Json activation = document_.value("hidden_act", Json("silu"));
    known_.insert("hidden_act");
    if (activation != "silu" && activation != "swish")
      refuse("hidden_act", activation, "gptrain has silu in gated MLPs");
    bool bias = false;
    if (architecture == HfArchitecture::llama) {
      bias = flag("attention_bias", false);
      if (flag("mlp_bias", false) != bias) {
        refuse(
            "mlp_bias", document_.value("mlp_bias", Json(false)),
            fmt::format("must be {}, as attention_bias is: gptrain's linears have biases in both branches or in none",
                        bias));
      }
    }
    if (is_qwen3) require("attention_bias", false, "gptrain has no biases of attention alone");
    set("model.bias", bias);
    bias = architecture == HfArchitecture::qwen2_moe ? flag("qkv_bias", true) : bias;
    set("model.qkv_bias", bias || architecture == HfArchitecture::qwen2);
    require("partial_rotary_factor", 1.0, "gptrain rotates all features of a head");
    read_rope();
    read_window();
    if (result_.hf.has_experts()) read_experts();
  }

  void read_experts() {
    const bool is_mixtral = result_.hf.architecture == HfArchitecture::mixtral;
    const bool is_qwen2 = result_.hf.architecture == HfArchitecture::qwen2_moe;
    const int64_t usual_top_k = is_mixtral ? 2 : is_qwen2 ? 4 : 8;
    // transformers 5.24 renamed num_experts of Qwen3-MoE.
    const bool is_local = is_mixtral || (!is_qwen2 && document_.contains("num_local_experts"));
    const int64_t usual_experts = is_mixtral ? 8 : is_qwen2 ? 60 : 128;
    Json moe = {{"experts", count(is_local ? "num_local_experts" : "num_experts", usual_experts)},
                {"top_k", count("num_experts_per_tok", usual_top_k)}};
    if (is_qwen2) hf_add_shared_experts(count("shared_expert_intermediate_size", 5632), moe);
    if (is_mixtral) {
      moe["ffn_hidden_size"] = count("intermediate_size", 0);
    } else {
      moe["ffn_hidden_size"] = count("moe_intermediate_size", is_qwen2 ? 1408 : 768);
      moe["renormalise"] = flag("norm_topk_prob", false);
      read_expert_layers(moe);
    }
    if (moe["top_k"] == moe["experts"]) moe["aux_loss"] = 0;
    const char* const not_used = "for training by transformers, whose formula is another; see model.moe.aux_loss";
    for (const char* key : {"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"}) {
      const Json& given = value(key);
      if (given.is_number() && given != 0)
        result_.notes.push_back(fmt::format("{} = {}: {}", key, show_value(given), not_used));
    }
    if (is_qwen2) require("use_sliding_window", false, "releases differ in the layers with windows");
    set("model.moe", std::move(moe));
  }

  void read_expert_layers(Json& moe) {
    const Json& dense = value("mlp_only_layers");
    const auto layers =
        hf_expert_layers(std::min(count("num_hidden_layers", 0), most_layers), count("decoder_sparse_step", 1), dense);
    if (!layers) return refuse("mlp_only_layers", dense, "gptrain has experts in every n-th layer from a first one on");
    moe["first"] = layers->first;
    moe["every"] = layers->every;
  }

  void read_rope() {
    const Json& parameters = value("rope_parameters");
    const Json& scaling = value("rope_scaling");
    const Json& theta = value("rope_theta");
    const double usual = result_.hf.architecture == HfArchitecture::mixtral ? 1e6 : 1e4;
    Json rope = {{"rope_theta", theta.is_null() ? Json(usual) : theta}, {"rope_scaling", "none"}};
    if (!scaling.is_null()) rope.update(rope_of("rope_scaling", scaling));
    if (!parameters.is_null()) {
      const Json later = rope_of("rope_parameters", parameters);
      if (!scaling.is_null() && differs(rope, later)) refuse("rope_scaling", scaling, "contradicts rope_parameters");
      if (!theta.is_null() && later.contains("rope_theta") && later["rope_theta"] != theta)
        refuse("rope_theta", theta, "contradicts rope_parameters");
      rope.update(later);
    }
    for (const auto& [key, set_to] : rope.items()) result_.model[key] = set_to;
  }

  // Returns true if a key that both have has different values.
  static bool differs(const Json& a, const Json& b) {
    for (const auto& [key, value] : b.items()) {
      if (a.contains(key) && a[key] != value) return true;
    }
    return false;
  }

  // Returns the RoPE settings under gptrain's keys.
  Json rope_of(const std::string& name, const Json& object) {
    Json rope = Json::object();
    if (!object.is_object()) {
      refuse(name, object, "must be an object");
      return rope;
    }
    const Json type = object.contains("rope_type") ? object["rope_type"] : object.value("type", Json("default"));
    const bool is_llama3 = type == "llama3";
    if (type != "default" && type != "linear" && !is_llama3) {
      refuse(name + ".rope_type", type, "gptrain has default, linear and llama3");
      return rope;
    }
    rope["rope_scaling"] = type == "default" ? Json("none") : type;
    for (const auto& [key, member] : object.items()) {
      if (member.is_null() || key == "rope_type" || key == "type") continue;
      if (key == "rope_theta") {
        rope["rope_theta"] = member;
      } else if (key == "partial_rotary_factor") {
        if (member != 1.0) refuse(name + "." + key, member, "gptrain rotates all features of a head");
      } else if (key == "factor") {
        if (type != "default") rope["rope_factor"] = member;
      } else if (key == "low_freq_factor" || key == "high_freq_factor") {
        if (is_llama3) rope["rope_" + key] = member;
      } else if (key == "original_max_position_embeddings") {
        if (is_llama3) rope["rope_original_length"] = member;
      } else {
        refuse(name + "." + key, member, "gptrain cannot compute rotation angles with this key");
      }
    }
    if (type != "default" && !rope.contains("rope_factor")) faults_.push_back(name + ".factor must be given");
    for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
      if (is_llama3 && !rope.contains(fmt::format("rope_{}", key)))
        faults_.push_back(fmt::format("{}.{} must be given", name, key));
    }
    if (is_llama3 && !rope.contains("rope_original_length"))
      faults_.push_back(name + ".original_max_position_embeddings must be given");
    return rope;
  }

  void read_window() {
    constexpr int64_t usual_window = 4096;
    const HfArchitecture architecture = result_.hf.architecture;
    const bool is_moe = result_.hf.is_qwen_moe();
    const bool is_qwen = architecture == HfArchitecture::qwen2 || architecture == HfArchitecture::qwen3 || is_moe;
    const bool has_window = is_qwen ? flag("use_sliding_window", false) : architecture != HfArchitecture::llama;
    if (is_qwen || has_window) known_.insert("sliding_window");
    // A missing key means the class's default window, a null one no window.
    int64_t window = 0;
    const bool usually_none = architecture == HfArchitecture::mixtral;
    if (has_window)
      window = document_.contains("sliding_window") ? count("sliding_window", 0) : usually_none ? 0 : usual_window;
    // First layer with a window.
    const int64_t first = is_qwen && !is_moe ? count("max_window_layers", 28) : 0;
    if (is_moe) known_.insert("max_window_layers");
    const Json& kinds = value("layer_types");
    if (!kinds.is_null() && result_.hf.has_layer_types())
      return read_layer_kinds("layer_types", kinds, kinds, {"full_attention", "sliding_attention"}, window);
    if (!kinds.is_null()) refuse("layer_types", kinds, fmt::format("{} has none", result_.hf.name));
    std::vector<bool> layers(std::min(count("num_hidden_layers", 0), most_layers));
    for (size_t layer = 0; layer < layers.size(); ++layer)
      layers[layer] = window > 0 && static_cast<int64_t>(layer) >= first;
    set_windows(std::move(layers), window);
  }

  void read_gemma() {
    const bool is_gemma3 = result_.hf.architecture == HfArchitecture::gemma3;
    set("model.norm", "rmsnorm");
    for (const char* key : {"model.norm_offset", "model.norm_after"}) set(key, true);
    set("model.positions", "rope");
    for (const char* key : {"model.bias", "model.qkv_bias"}) set(key, false);
    set("model.qk_norm", is_gemma3);
    const Json activation = document_.value("hidden_activation", Json("gelu_pytorch_tanh"));
    for (const char* key : {"hidden_activation", "hidden_act", "cache_implementation"}) known_.insert(key);
    if (activation == "gelu_pytorch_tanh" || activation == "gelu_new") {
      set("model.activation", "geglu_tanh");
    } else if (activation == "gelu" || activation == "silu") {
      set("model.activation", activation == "gelu" ? "geglu" : "swiglu");
    } else {
      refuse("hidden_activation", activation, "gptrain has gelu_pytorch_tanh, gelu_new, gelu and silu in gated MLPs");
    }
    require("attention_bias", false, "gptrain has no biases of attention alone");
    require("use_bidirectional_attention", false, "gptrain's attention is causal");
    set("model.embedding_scale", std::sqrt(static_cast<double>(count("hidden_size", 0))));
    set("model.logit_softcap", number("final_logit_softcapping", is_gemma3 ? 0 : 30));
    if (is_gemma3) {
      refuse_given("attn_logit_softcapping", "transformers reads this key for the class, but does not apply it");
    } else {
      set("model.attention_softcap", number("attn_logit_softcapping", 50));
    }
    const double scalar = number("query_pre_attn_scalar", 256);
    if (scalar <= 0) refuse("query_pre_attn_scalar", scalar, "must be greater than 0");
    if (scalar != document_.value("head_dim", Json(0))) set("model.attention_scale", 1 / std::sqrt(scalar));
    read_gemma_layers();
    if (is_gemma3) {
      read_gemma3_rope();
    } else {
      read_rope();
    }
  }

  // Returns `usual` if the key is missing, and 0 if it is null.
  double number(const std::string& name, double usual) {
    const Json& given = value(name);
    if (given.is_null()) return document_.contains(name) ? 0 : usual;
    if (given.is_number()) return given.get<double>();
    refuse(name, given, "must be a number");
    return usual;
  }

  void read_gemma_layers() {
    constexpr int64_t usual_window = 4096;
    const int64_t window = document_.contains("sliding_window") ? count("sliding_window", 0) : usual_window;
    known_.insert("_sliding_window_pattern");
    const int64_t period =
        result_.hf.architecture == HfArchitecture::gemma3 ? count("sliding_window_pattern", 6) : int64_t{2};
    Json kinds = value("layer_types");
    if (period == 0) return refuse("sliding_window_pattern", 0, "must be greater than 0");
    const int64_t layers = kinds.is_null() ? std::min(count("num_hidden_layers", 0), most_layers) : 0;
    for (int64_t i = 1; i <= layers; ++i) kinds.push_back(i % period == 0 ? "full_attention" : "sliding_attention");
    read_layer_kinds("layer_types", kinds, kinds, {"full_attention", "sliding_attention"}, window);
  }

  // Reads the angles of layers with a window and of the others: rope_parameters of transformers 5, or else the older
  // rope_local_base_freq, and rope_theta and rope_scaling.
  void read_gemma3_rope() {
    const Json& parameters = value("rope_parameters");
    const auto of_kind = [&](const char* kind, const char* theta, double usual) {
      const Json& older = value(theta);
      Json rope = {{"rope_theta", older.is_null() ? Json(usual) : older}, {"rope_scaling", "none"}};
      if (!parameters.is_object() || !parameters.contains(kind) || parameters[kind].is_null()) return rope;
      const Json later = rope_of(fmt::format("rope_parameters.{}", kind), parameters[kind]);
      if (!older.is_null() && later.contains("rope_theta") && later["rope_theta"] != older)
        refuse(theta, older, "contradicts rope_parameters");
      rope.update(later);
      return rope;
    };
    if (!parameters.is_null() && !parameters.is_object()) refuse("rope_parameters", parameters, "must be an object");
    const Json local = of_kind("sliding_attention", "rope_local_base_freq", 1e4);
    Json global = of_kind("full_attention", "rope_theta", 1e6);
    if (const Json& scaling = value("rope_scaling"); !scaling.is_null()) {
      const Json older = rope_of("rope_scaling", scaling);
      if (parameters.is_object() && differs(global, older))
        refuse("rope_scaling", scaling, "contradicts rope_parameters");
      global.update(older);
    }
    if (local["rope_scaling"] != "none")
      refuse("rope_parameters.sliding_attention", parameters["sliding_attention"],
             "gptrain does not scale the rotation angles of layers with a window");
    set_rope(local, global);
  }

  // Sets the angles of layers with a window and of the others, by word of the attention pattern if the words need it.
  void set_rope(const Json& local, const Json& global) {
    if (windows_of_words_.empty()) return;  // the layers have a fault
    const auto& words = windows_of_words_;
    const bool all_local = std::find(words.begin(), words.end(), false) == words.end();
    const bool all_global = std::find(words.begin(), words.end(), true) == words.end();
    for (const auto& [key, set_to] : (all_local ? local : global).items()) result_.model[key] = set_to;
    if (all_local || all_global) return;
    for (const char* key : {"rope_theta", "rope_scaling"}) {
      if (local[key] == global[key]) continue;
      Json of_words = Json::array();
      for (const bool has_window : words) of_words.push_back((has_window ? local : global)[key]);
      result_.model.erase(key);
      result_.model[fmt::format("{}_pattern", key)] = std::move(of_words);
    }
  }

  void read_end_token() {
    Json end = document_.value("eos_token_id", Json(nullptr));
    if (end.is_array() && !end.empty()) end = Json(end.front());
    if (end.is_number_unsigned() && end.get<uint64_t>() <= uint64_t{INT32_MAX}) result_.end_token = end.get<int32_t>();
  }

  const Json& document_;
  std::set<std::string> known_;
  std::vector<std::string> faults_;
  HfDescription result_;
  std::vector<bool> windows_of_words_;  // by word of the attention pattern: whether it has a window
};

HfDescription read(const std::string& text) {
  JsonText parsed = read_json(text);
  const auto fault = [](const std::string& what) { return Error(ExitCode::checkpoint, "{}", what); };
  if (!parsed.syntax_error.empty()) throw fault(parsed.syntax_error);
  if (!parsed.duplicates.empty()) throw fault(printable(parsed.duplicates.front().path) + " is given twice");
  const Json& document = parsed.document;
  if (!document.is_object()) throw fault("it is not a JSON object");
  return HfConfigReader(document, hf_class_of(document)).read();
}

}  // namespace

HfDescription read_hf_config(const std::filesystem::path& path) {
  const InputFile file(path);
  if (file.bytes() > max_config_bytes) {
    throw Error(ExitCode::checkpoint, "{}: is larger than a config may be, which is {} bytes", path.string(),
                max_config_bytes);
  }
  std::string text(file.bytes(), '\0');
  file.read(0, text.data(), file.bytes());
  try {
    return read(text);
  } catch (const Error& error) {
    throw Error(error.code(), "{} cannot be imported:\n  {}", path.string(), error.lines());
  }
}

}  // namespace gptrain::checkpoint
