#include "checkpoint/hf_import.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "catch.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_export.h"
#include "checkpoint/model_check.h"
#include "checkpoint/safetensors.h"
#include "hf_folder.h"

using namespace gptrain;
using namespace checkpoint_test;
namespace fs = std::filesystem;

namespace {

std::vector<float> weight(const fs::path& checkpoint, const std::string& name) {
  const Contents contents = read_contents(checkpoint);
  const std::vector<int64_t>& shape = contents.tensors.at(name).front().global_shape;
  std::vector<float> values(static_cast<size_t>(*num_elements(shape)));
  load_slices(contents, {{.name = name, .global_shape = shape, .box = whole_box(shape), .data = values.data()}});
  return values;
}

const std::vector<Overrides> models = {
    {},
    {"model.tied_head=false", "model.activation=gelu"},
    llama,
    with(llama, {"model.bias=true", "model.tied_head=true", "model.num_kv_heads=1"}),
    with(llama,
         {"model.rope_scaling=llama3", "model.rope_factor=8", "model.rope_original_length=4", "model.head_size=6"}),
    with(llama, {"model.rope_scaling=linear", "model.rope_factor=2.5", "model.rope_theta=500"}),
    with(llama, {"model.attention_window=3", "model.num_kv_heads=1"}),
    with(llama, {"model.qkv_bias=true"}),
    with(llama, {"model.qkv_bias=true", "model.attention_window=5", "model.tied_head=true"}),
    with(llama, {"model.qk_norm=true", "model.head_size=8", "model.num_kv_heads=1"}),
    with(llama, {R"(model.attention_pattern=["dense","band:3"])", "model.num_kv_heads=1"}),
    with(llama, {R"(model.attention_pattern=["band:3","dense"])", "model.qkv_bias=true"}),
    with(llama, {R"(model.attention_pattern=["dense","band:3"])", "model.qk_norm=true"}),
    {"model.attention_scale=1", "model.activation=gelu"},
    with(gpt_neo, {R"(model.attention_pattern=["dense","band:3"])"}),
    with(gpt_neo, {"model.attention_window=3", "model.tied_head=false"}),
    gemma2,
    with(gemma2, {"model.attention_softcap=0", "model.logit_softcap=0", R"(model.attention_pattern=["band:3"])",
                  "model.tied_head=false", "model.activation=geglu"}),
    gemma3,
    with(gemma3, {R"(model.attention_pattern=["dense"])", "model.rope_theta_pattern=[]",
                  "model.rope_scaling_pattern=[]", "model.rope_scaling=linear", "model.rope_theta=500"}),
    with(gemma3, {R"(model.attention_pattern=["band:5"])", "model.rope_theta_pattern=[]",
                  "model.rope_scaling_pattern=[]", "model.rope_factor=null", "model.activation=swiglu"}),
    with(llama, {R"(model.moe={"experts":3,"top_k":2,"ffn_hidden_size":64})", "model.ffn_hidden_size=64"}),
    with(llama, {R"(model.moe={"experts":3,"top_k":2,"ffn_hidden_size":64,"first":1,"every":1,"renormalise":false})",
                 "model.qk_norm=true"}),
    with(llama, {R"(model.moe={"experts":3,"top_k":2,"ffn_hidden_size":64,"shared":1,"shared_ffn_hidden_size":40,)"
                 R"("shared_gate":"sigmoid","renormalise":false})",
                 "model.qkv_bias=true"})};

// Returns the patterns of the folder's model with changed keys of config.json.
std::vector<AttentionPattern> patterns_with(HfFolder& hf, const HfJson& changes) {
  HfJson config = hf.config();
  config.update(changes);
  hf.set_config(config);
  hf.import();
  return saved_config(hf.checkpoint(), read_manifest(hf.checkpoint())).model.attention_pattern;
}

}  // namespace

TEST_CASE("What is exported and imported is the same model, and is exported again to the same bytes", "[hf]") {
  std::set<std::string> classes;
  for (const Overrides& overrides : models) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      HfFolder hf(overrides, dtype);
      const HfImport read = hf.import();
      INFO(read.architecture << " " << dtype_name(dtype));
      classes.insert(read.architecture);
      CHECK(read.notes == std::vector<std::string>{"no tokenizer is imported: the folder holds none; name one in "
                                                   "data.tokenizer, and in generate --tokenizer"});
      CHECK(read.parameters == hf.model().spec().parameters());
      check_model(hf.checkpoint());
      verify_checkpoint(hf.checkpoint());
      const Manifest manifest = read_manifest(hf.checkpoint());
      CHECK(manifest.progress.step == 0);
      CHECK(make_spec(saved_config(hf.checkpoint(), manifest).model).parameters() == read.parameters);
      if (dtype == DType::f32) {
        for (const TensorSpec& tensor : hf.model().spec().tensors) {
          const std::vector<float> values = weight(hf.checkpoint(), "weight/" + tensor.name);
          for (const int64_t i : {int64_t{0}, tensor.count() / 2, tensor.count() - 1})
            CHECK(values[static_cast<size_t>(i)] == hf.model().value(tensor.name, 0, i));
          for (const float moment : weight(hf.checkpoint(), "exp_avg_sq/" + tensor.name)) REQUIRE(moment == 0);
        }
      }
      const fs::path again = hf.model().folder() / "again";
      export_hf(hf.checkpoint(), again, dtype);
      CHECK(read_file(again / weights_name) == read_file(hf.file(weights_name)));
      CHECK(read_file(again / "config.json") == read_file(hf.file("config.json")));
    }
  }
  CHECK(classes == std::set<std::string>{"GPT2LMHeadModel", "GPTNeoForCausalLM", "LlamaForCausalLM",
                                         "MistralForCausalLM", "MinistralForCausalLM", "Qwen2ForCausalLM",
                                         "Qwen3ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM",
                                         "MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"});
}

TEST_CASE("The model's section is written for a config, with the precision asked for", "[hf]") {
  HfFolder hf(with(llama, {"model.head_size=6"}));
  hf.import("bf16");
  const HfJson section = HfJson::parse(read_file(hf.checkpoint().parent_path().parent_path() / "model.json"));
  CHECK(section["model"]["head_size"] == 6);
  CHECK(section["model"]["positions"] == "rope");
  CHECK(section["model"]["sequence_length"] == 5);
  CHECK(!section["model"].contains("preset"));
  CHECK(saved_config(hf.checkpoint(), read_manifest(hf.checkpoint())).precision.compute == DType::bf16);
}

TEST_CASE("Weights of 16 bits become the same numbers", "[hf]") {
  HfFolder hf;
  std::vector<Given> all = read_tensors(hf.file(weights_name));
  for (Given& one : all) {
    std::vector<f16> narrow(one.bytes.size() / 4);
    for (size_t i = 0; i < narrow.size(); ++i) {
      float value = 0;
      std::memcpy(&value, one.bytes.data() + 4 * i, 4);
      narrow[i] = to_f16(value);
    }
    one.tensor.dtype = DType::f16;
    one.bytes.resize(2 * narrow.size());
    std::memcpy(one.bytes.data(), narrow.data(), one.bytes.size());
  }
  write_tensors(hf.file(weights_name), all);
  hf.import();
  CHECK(weight(hf.checkpoint(), "weight/blocks.1.ffn.out.weight")[17] ==
        to_float(to_f16(hf.model().value("blocks.1.ffn.out.weight", 0, 17))));
}

TEST_CASE("GPT-2's older files: names without prefix, masks, the tied head, keys that are not given", "[hf]") {
  HfFolder hf;
  const std::string before = [&] {
    hf.import();
    return read_file(hf.checkpoint() / "rank-00000.safetensors");
  }();
  std::vector<Given> all = read_tensors(hf.file(weights_name));
  for (Given& one : all) one.tensor.name = one.tensor.name.substr(std::strlen("transformer."));
  all.push_back({{"h.0.attn.bias", DType::u8, {1, 1, 5, 5}}, std::vector<std::byte>(25)});
  all.push_back({{"h.0.attn.masked_bias", DType::f32, {}}, std::vector<std::byte>(4)});
  all.push_back(
      {{"lm_head.weight", DType::f32, {vocab, hidden}},
       std::find_if(all.begin(), all.end(), [](const Given& one) { return one.tensor.name == "wte.weight"; })->bytes});
  write_tensors(hf.file(weights_name), all);
  HfJson config = hf.config();
  for (const char* key : {"activation_function", "layer_norm_epsilon", "initializer_range", "tie_word_embeddings"})
    config.erase(key);
  config["n_ctx"] = 5;
  config["something_new"] = 1;
  hf.set_config(config);
  const HfImport read = hf.import();
  CHECK(read_file(hf.checkpoint() / "rank-00000.safetensors") == before);
  REQUIRE(read.notes.size() == 3);
  CHECK(read.notes[0] == "something_new of config.json is not used");
  CHECK(lacking(read.notes[1], {"lm_head.weight is not imported"}) == "");
}

TEST_CASE("A head of its own beside a tied one is refused", "[hf]") {
  for (const Overrides& overrides : {Overrides{}, with(llama, {"model.tied_head=true"})}) {
    HfFolder hf(overrides);
    std::vector<Given> all = read_tensors(hf.file(weights_name));
    const auto table = std::find_if(all.begin(), all.end(), [](const Given& one) {
      return one.tensor.name == "transformer.wte.weight" || one.tensor.name == "model.embed_tokens.weight";
    });
    Given head{{"lm_head.weight", DType::f32, table->tensor.shape}, table->bytes};
    const std::string name = table->tensor.name;
    all.push_back(head);
    write_tensors(hf.file(weights_name), all);
    CHECK(lacking(hf.import().notes.front(), {"lm_head.weight is not imported"}) == "");
    all.back().bytes[5] ^= std::byte{1};
    write_tensors(hf.file(weights_name), all);
    CHECK(lacking(hf.refusal(), {"config.json cannot be imported: it ties the head to \"" + name + "\"",
                                 "\"lm_head.weight\" of model.safetensors differs from that"}) == "");
    all.back().bytes.resize(4);
    all.back().tensor.shape = {1};
    write_tensors(hf.file(weights_name), all);
    CHECK(lacking(hf.refusal(), {"\"lm_head.weight\" of model.safetensors differs from that"}) == "");
  }
}

TEST_CASE("Angles are read from the keys of older releases and of later ones", "[hf]") {
  HfFolder hf(with(llama, {"model.rope_scaling=llama3", "model.rope_factor=8", "model.rope_original_length=4"}));
  const auto rope = [&](const HfJson& parameters, const HfJson& scaling, const HfJson& theta) {
    HfJson config = hf.config();
    config["rope_parameters"] = parameters;
    config["rope_scaling"] = scaling;
    config["rope_theta"] = theta;
    hf.set_config(config);
    hf.import();
    return saved_config(hf.checkpoint(), read_manifest(hf.checkpoint())).model.rope(0);
  };
  const HfJson scaling = hf.config()["rope_scaling"];
  HfJson without_theta = scaling;
  without_theta.erase("rope_theta");
  const RotaryAngles llama3{.theta = 300, .scaling = RopeScaling::llama3, .factor = 8, .original_length = 4};
  CHECK(rope(nullptr, without_theta, 300) == llama3);
  HfJson later = scaling;
  later["rope_theta"] = 300.0;
  CHECK(rope(later, nullptr, nullptr) == llama3);
  CHECK(rope(nullptr, {{"type", "linear"}, {"factor", 2.0}}, nullptr) ==
        RotaryAngles{.scaling = RopeScaling::linear, .factor = 2});
  CHECK(rope({{"rope_type", "default"}, {"rope_theta", 7.0}}, nullptr, nullptr).theta == 7);
  CHECK(rope(nullptr, nullptr, nullptr) == RotaryAngles{});

  const auto refusal = [&](const HfJson& value) { return hf.refusal_with("rope_parameters", value); };
  CHECK(lacking(refusal({{"rope_type", "dynamic"}, {"factor", 2.0}}),
                {"config.json cannot be imported", "rope_parameters.rope_type = \"dynamic\": gptrain has default"}) ==
        "");
  CHECK(lacking(refusal({{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}),
                {"rope_parameters.partial_rotary_factor = 0.5: gptrain rotates all features of a head"}) == "");
  CHECK(lacking(refusal({{"full_attention", {{"rope_type", "default"}}}}), {"rope_parameters.full_attention"}) == "");
  CHECK(lacking(refusal({{"rope_type", "llama3"}, {"factor", 8.0}}),
                {"rope_parameters.low_freq_factor must be given"}) == "");
  CHECK(lacking(hf.refusal_with("rope_scaling", {{"type", "yarn"}}), {"rope_scaling.rope_type = \"yarn\""}) == "");
}

TEST_CASE("A window counts where a class has it", "[hf]") {
  const auto window = [](HfFolder& hf, const HfJson& changes) {
    const std::vector<AttentionPattern> patterns = patterns_with(hf, changes);
    REQUIRE(patterns.size() == 1);
    return patterns.front().width;
  };
  HfFolder mistral(with(llama, {"model.attention_window=3"}));
  CHECK(window(mistral, {{"sliding_window", 4}}) == 4);
  CHECK(window(mistral, {{"sliding_window", nullptr}}) == 0);
  CHECK(window(mistral, {{"sliding_window", 100}}) == 0);  // for samples of 5
  HfFolder qwen(with(llama, {"model.attention_window=3", "model.qkv_bias=true"}));
  CHECK(window(qwen, {{"use_sliding_window", false}}) == 0);
  CHECK(window(qwen, {{"use_sliding_window", true}, {"max_window_layers", 2}}) == 0);
  CHECK(window(qwen, {{"layer_types", {"sliding_attention", "sliding_attention"}}}) == 3);
  CHECK(window(qwen, {{"layer_types", {"full_attention", "full_attention"}}}) == 0);
  for (const HfJson& kinds :
       {HfJson::array({"full_attention"}), HfJson::array({"full_attention", "full_attention", "full_attention"})})
    CHECK(lacking(qwen.refusal_with("layer_types", kinds), {"layer_types", "must name the kind of each of 2 layers"}) ==
          "");
}

TEST_CASE("Windows of some layers are read where a class has them, and refused where it has not", "[hf]") {
  const std::vector<AttentionPattern> dense_band = {window_pattern(0), window_pattern(3)};
  HfFolder qwen(with(llama, {"model.attention_window=3", "model.qkv_bias=true"}));
  CHECK(patterns_with(qwen, {{"max_window_layers", 1}}) == dense_band);
  CHECK(patterns_with(qwen, {{"layer_types", {"full_attention", "sliding_attention"}}}) == dense_band);
  CHECK(patterns_with(qwen, {{"layer_types", {"sliding_attention", "full_attention"}}}) ==
        std::vector{window_pattern(3), window_pattern(0)});
  CHECK(lacking(qwen.refusal_with("layer_types", {"full_attention", "chunked_attention"}),
                {"layer_types = ", "gptrain has full_attention and sliding_attention"}) == "");
  CHECK(lacking(qwen.refusal_with("use_sliding_window", false),
                {"gives layers a window, but the config has no width for it"}) == "");

  HfFolder mistral(with(llama, {"model.attention_window=3"}));
  CHECK(lacking(mistral.refusal_with("layer_types", {"full_attention", "sliding_attention"}),
                {"layer_types = ", "MistralForCausalLM has none"}) == "");

  HfFolder neo(with(gpt_neo, {R"(model.attention_pattern=["dense","band:3"])"}));
  CHECK(patterns_with(neo, {{"attention_types", {{{"local", "global"}, 1}}}}) ==
        std::vector{window_pattern(3), window_pattern(0)});
  CHECK(patterns_with(neo, {{"attention_types", {{{"global"}, 1}, {{"local"}, 1}}}, {"window_size", 2}}) ==
        std::vector{window_pattern(0), window_pattern(2)});
  CHECK(lacking(neo.refusal_with("attention_types", {{{"global"}, 3}}), {"must name the kind of each of 2 layers"}) ==
        "");
  CHECK(lacking(neo.refusal_with("attention_types", {{HfJson::array(), 3}}), {"must be a list of pairs"}) == "");
  CHECK(lacking(neo.refusal_with("attention_types", {{{"global", "strided"}, 1}}), {"gptrain has global and local"}) ==
        "");
  CHECK(lacking(neo.refusal_with("attention_layers", {"local", "local"}), {"contradicts attention_types"}) == "");
}

TEST_CASE("Gemma's keys are read as releases write them, and with the class's defaults", "[hf]") {
  const auto model_with = [](HfFolder& hf, const HfJson& changes) {
    HfJson config = hf.config();
    config.merge_patch(changes);
    hf.set_config(config);
    hf.import();
    return saved_config(hf.checkpoint(), read_manifest(hf.checkpoint())).model;
  };
  const RotaryAngles local{.theta = 1e4}, global{.theta = 1e6, .scaling = RopeScaling::linear, .factor = 8};
  // As google/gemma-3-4b's text_config has them, before transformers 5.
  HfFolder third(gemma3);
  const HfJson before_5 = {
      {"rope_parameters", nullptr},  {"layer_types", nullptr},
      {"sliding_window_pattern", 2}, {"rope_local_base_freq", 1e4},
      {"rope_theta", 1e6},           {"rope_scaling", {{"rope_type", "linear"}, {"rope_theta", nullptr}}}};
  const ModelConfig old = model_with(third, before_5);
  CHECK(old.rope(0) == local);
  CHECK(old.rope(1) == global);
  CHECK(old.attention_pattern == std::vector{window_pattern(3), window_pattern(0)});
  CHECK(old.norm_offset);
  CHECK(old.norm_after);
  CHECK(old.qk_norm);
  CHECK(old.attention_scale == 0.25);
  const ModelConfig usual = model_with(third, {{"rope_local_base_freq", nullptr},
                                               {"rope_theta", nullptr},
                                               {"rope_scaling", nullptr},
                                               {"sliding_window_pattern", nullptr},
                                               {"query_pre_attn_scalar", 6},
                                               {"sliding_window", nullptr},
                                               {"final_logit_softcapping", 20.0},
                                               {"tie_word_embeddings", nullptr}});
  CHECK(usual.attention_pattern == std::vector{window_pattern(5)});  // 4096 of at most 5 tokens, in layers 1 and 2 of 6
  CHECK(usual.rope(0) == local);
  CHECK(usual.attention_scale == 0);
  CHECK(usual.logit_softcap == 20);
  CHECK(usual.embedding_scale == std::sqrt(12.0));
  CHECK(usual.tied_head);

  HfFolder second(gemma2);
  const ModelConfig defaults = model_with(second, {{"final_logit_softcapping", nullptr},
                                                   {"attn_logit_softcapping", nullptr},
                                                   {"query_pre_attn_scalar", nullptr},
                                                   {"layer_types", nullptr},
                                                   {"hidden_activation", nullptr}});
  CHECK(defaults.logit_softcap == 30);
  CHECK(defaults.attention_softcap == 50);
  CHECK(defaults.attention_scale == 1.0 / 16);
  CHECK(defaults.activation == ActivationKind::geglu_tanh);
  CHECK(defaults.attention_pattern == std::vector{window_pattern(3), window_pattern(0)});

  for (const auto& [key, value] : std::vector<std::pair<std::string, HfJson>>{
           {"attention_bias", true},
           {"use_bidirectional_attention", true},
           {"attn_logit_softcapping", 50.0},
           {"hidden_activation", "relu"},
           {"query_pre_attn_scalar", 0},
           {"rope_parameters",
            {{"full_attention", {{"rope_type", "yarn"}, {"factor", 2.0}}}, {"sliding_attention", nullptr}}},
           {"rope_parameters", {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}}}})
    CHECK(lacking(third.refusal_with(key, value), {"config.json cannot be imported:\n  " + key}) == "");
}

TEST_CASE("What a class does and gptrain does not is refused by name", "[hf]") {
  HfFolder gpt2;
  const std::vector<std::pair<std::string, HfJson>> of_gpt2 = {{"scale_attn_by_inverse_layer_idx", true},
                                                               {"add_cross_attention", true},
                                                               {"activation_function", "relu"},
                                                               {"quantization_config", {{"bits", 4}}}};
  for (const auto& [key, value] : of_gpt2)
    CHECK(lacking(gpt2.refusal_with(key, value), {"config.json cannot be imported:\n  " + key + " = "}) == "");
  CHECK(lacking(gpt2.refusal_with("architectures", HfJson::array({"GPTNeoXForCausalLM"})),
                {"architectures = [\"GPTNeoXForCausalLM\"]: gptrain reads GPT2LMHeadModel, GPTNeoForCausalLM, "}) ==
        "");
  CHECK(lacking(gpt2.refusal_with("architectures", HfJson::array({"GptOssForCausalLM"})),
                {"; GptOssForCausalLM has a clamped SwiGLU, experts with biases and MXFP4 weights"}) == "");
  CHECK(lacking(gpt2.refusal_with("n_layer", nullptr), {"n_layer must be given"}) == "");
  CHECK(lacking(gpt2.refusal_with("n_head", 5), {"model.num_heads = 5: must divide model.hidden_size = 12"}) == "");
  HfFolder gated(models.back());
  CHECK(lacking(gated.refusal_with("use_sliding_window", true),
                {"use_sliding_window = true: releases differ in the layers with windows"}) == "");
  HfFolder plain(llama);
  CHECK(lacking(plain.refusal_with("attention_bias", true), {"mlp_bias = false: must be true, as attention_bias is"}) ==
        "");
  CHECK(lacking(plain.refusal_with("hidden_act", "gelu"), {"hidden_act = \"gelu\""}) == "");
  CHECK(lacking(plain.refusal_with("partial_rotary_factor", 0.25), {"partial_rotary_factor = 0.25"}) == "");
  HfFolder experts(with(llama, {R"(model.moe={"experts":3,"top_k":2,"ffn_hidden_size":64})", "model.qk_norm=true"}));
  CHECK(lacking(experts.refusal_with("mlp_only_layers", HfJson::array({0, 1, 2})),
                {"mlp_only_layers = [0,1,2]: gptrain has experts in every n-th layer from a first one on"}) == "");
  HfFolder qwen3(with(llama, {"model.qk_norm=true"}));
  CHECK(lacking(qwen3.refusal_with("attention_bias", true), {"attention_bias = true"}) == "");
  CHECK(lacking(qwen3.refusal_with("head_dim", nullptr), {"head_dim must be given"}) == "");
}

TEST_CASE("The number of experts of Qwen3-MoE has the name of either release", "[hf]") {
  HfFolder hf(with(llama, {R"(model.moe={"experts":3,"top_k":2,"ffn_hidden_size":64})", "model.qk_norm=true"}));
  HfJson config = hf.config();
  config["num_local_experts"] = config["num_experts"];
  config.erase("num_experts");
  hf.set_config(config);
  hf.import();
  const HfJson section = HfJson::parse(read_file(hf.checkpoint().parent_path().parent_path() / "model.json"));
  CHECK(section["model"]["moe"]["experts"] == 3);
}

TEST_CASE("Tensors that are not the model's are refused by name", "[hf]") {
  HfFolder hf(llama);
  const std::vector<Given> all = read_tensors(hf.file(weights_name));
  const auto refusal = [&](const auto& change) {
    std::vector<Given> changed = all;
    change(changed);
    write_tensors(hf.file(weights_name), changed);
    return hf.refusal();
  };
  CHECK(lacking(refusal([](auto& given) { given.pop_back(); }),
                {"does not hold the model of its config.json", "missing"}) == "");
  CHECK(lacking(refusal([](auto& given) {
                  given.push_back({{"score.weight", DType::f32, {1}}, std::vector<std::byte>(4)});
                }),
                {"\"score.weight\" of model.safetensors is no tensor of a LlamaForCausalLM"}) == "");
  CHECK(lacking(refusal([](auto& given) { given[0].tensor.name = ""; }), {weights_name, "a tensor has no name"}) == "");
  CHECK(lacking(refusal([](auto& given) { std::swap(given[0].tensor.shape[0], given[0].tensor.shape[1]); }),
                {"has shape [", "its config asks for ["}) == "");
  CHECK(lacking(refusal([](auto& given) { given[0].bytes[3] = given[0].bytes[2] = std::byte{0xff}; }),
                {weights_name, "values that are not finite"}) == "");
  CHECK(lacking(refusal([](auto& given) { given[0].tensor.dtype = DType::i32; }), {"is i32; F32, F16 and BF16"}) == "");
}

TEST_CASE("Several files and their index are read as one, and checked against each other", "[hf]") {
  HfFolder hf(llama);
  hf.import();
  const std::string before = read_file(hf.checkpoint() / "rank-00000.safetensors");
  hf.shard();
  hf.import();
  CHECK(read_file(hf.checkpoint() / "rank-00000.safetensors") == before);

  const HfJson index = HfJson::parse(read_file(hf.file(index_name)));
  const auto refusal = [&](const auto& change) {
    HfJson changed = index;
    change(changed["weight_map"]);
    write_file(hf.file(index_name), changed.dump());
    return hf.refusal();
  };
  const std::string norm = "model.norm.weight";
  CHECK(lacking(refusal([&](HfJson& map) { map[norm] = "../b.safetensors"; }),
                {index_name, "\"../b.safetensors\" is not the name of a file in this folder"}) == "");
  CHECK(lacking(
            refusal([&](HfJson& map) { map[norm] = map[norm] == "a.safetensors" ? "b.safetensors" : "a.safetensors"; }),
            {index_name, "does not say that \"model.norm.weight\" is in"}) == "");
  CHECK(lacking(refusal([&](HfJson& map) { map["more"] = "a.safetensors"; }), {"a.safetensors", "\"more\""}) == "");
  CHECK(lacking(refusal([&](HfJson& map) { map[norm] = "c.safetensors"; }), {"c.safetensors"}) == "");
  CHECK(lacking(refusal([&](HfJson& map) { map = HfJson::array(); }), {index_name, "weight_map"}) == "");
  for (const char* name : {"/etc/passwd", "", ".", "..", "a/../b.safetensors"})
    CHECK(lacking(refusal([&](HfJson& map) { map[norm] = name; }),
                  {index_name, "\"" + std::string(name) + "\" is not the name of a file in this folder"}) == "");
  CHECK(lacking(refusal([&](HfJson& map) { map[""] = "a.safetensors"; }), {index_name, "a tensor has no name"}) == "");
  const auto refusal_of = [&](const std::string& text) {
    write_file(hf.file(index_name), text);
    return hf.refusal();
  };
  const std::string sound = index.dump();
  const std::string twice = "\"model.norm.weight\":\"a.safetensors\",";
  CHECK(lacking(refusal_of(std::string(sound).insert(sound.find("{", 1 + sound.find("weight_map")) + 1, twice)),
                {index_name, "\"model.norm.weight\" is given twice"}) == "");
  CHECK(lacking(refusal_of(std::string(sound).insert(1, "\"weight_map\":{},")),
                {index_name, "\"weight_map\" is given twice"}) == "");
}

TEST_CASE("Files of PyTorch are refused with the line that converts them", "[hf]") {
  HfFolder hf;
  fs::rename(hf.file(weights_name), hf.file("pytorch_model.bin"));
  CHECK(lacking(hf.refusal(), {"pytorch_model.bin is a file of PyTorch", "python3 -c \"from transformers import",
                               hf.path().string() + "-safetensors"}) == "");
  fs::remove(hf.file("pytorch_model.bin"));
  CHECK(lacking(hf.refusal(), {"has neither model.safetensors nor model.safetensors.index.json"}) == "");
}

// Every changed byte is refused as a bad checkpoint, or reads as something sound.
TEST_CASE("Damaged folders end with an error of their own", "[hf]") {
  HfFolder hf(llama);
  hf.shard();
  Random random(7);
  int refused = 0;
  for (const std::string name : {"config.json", index_name.c_str(), "a.safetensors"}) {
    const std::string sound = read_file(hf.file(name));
    const int64_t header = name == "a.safetensors" ? 1200 : std::ssize(sound);
    for (int i = 0; i < 120; ++i) {
      std::string damaged = sound;
      const auto at = static_cast<size_t>(random_below(random, std::min<int64_t>(header, std::ssize(sound))));
      if (i % 6 == 0) {
        damaged.resize(at);
      } else if (i % 6 == 1) {
        damaged.erase(at, static_cast<size_t>(random_below(random, 9)));
      } else {
        damaged[at] = static_cast<char>(i % 2 == 0 ? damaged[at] ^ (1 << random_below(random, 8))
                                                   : '0' + random_below(random, 80));
      }
      write_file(hf.file(name), damaged);
      try {
        hf.import();
        verify_checkpoint(hf.checkpoint());
      } catch (const Error& error) {
        INFO(error.what());
        CHECK(error.code() == ExitCode::checkpoint);
        CHECK(std::string(error.what()).find(hf.path().string()) != std::string::npos);
        ++refused;
      }
    }
    write_file(hf.file(name), sound);
  }
  CHECK(refused > 200);
}
