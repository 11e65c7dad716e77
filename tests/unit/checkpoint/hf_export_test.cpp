#include "checkpoint/hf_export.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "catch.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/safetensors.h"
#include "helpers.h"
#include "hf_fixture.h"

using namespace gptrain;
using namespace checkpoint_test;
namespace fs = std::filesystem;

namespace {

struct Exported {
  std::vector<int64_t> shape;
  DType dtype;
  std::vector<std::byte> bytes;

  float at(int64_t i) const {
    float value = 0;
    std::memcpy(&value, bytes.data() + i * 4, 4);
    return value;
  }
  float at(int64_t row, int64_t column) const { return at(row * shape[1] + column); }
};

std::map<std::string, Exported> read_exported(const fs::path& out, const std::string& name = "model.safetensors") {
  const InputFile file(out / name);
  const SafetensorsHeader header = read_safetensors_header(file);
  CHECK(header.metadata == SafetensorsMetadata{{"format", "pt"}});
  std::map<std::string, Exported> tensors;
  for (const SafetensorsTensor& stored : header.tensors) {
    Exported tensor{stored.shape, stored.dtype, std::vector<std::byte>(static_cast<size_t>(stored.bytes))};
    file.read(stored.offset, tensor.bytes.data(), stored.bytes);
    tensors.emplace(stored.name, std::move(tensor));
  }
  return tensors;
}

nlohmann::json read_config(const fs::path& out) { return nlohmann::json::parse(read_file(out / "config.json")); }

// Returns the message of an error of the command line or config.
std::string usage_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::usage);
    return e.what();
  }
  return "nothing was thrown";
}

std::string refusal(const Overrides& overrides) {
  return usage_error([&] { hf_model(config_of(overrides), DType::f32); });
}

using Shape = std::vector<int64_t>;

}  // namespace

TEST_CASE("GPT-2 is exported under its names, linears transposed", "[hf]") {
  const SavedModel model({});
  const HfExport result = export_hf(model.checkpoint(), model.out(), DType::f32);
  CHECK(result.architecture == "GPT2LMHeadModel");
  CHECK(result.parameters == model.spec().parameters());
  CHECK(result.bytes == static_cast<int64_t>(fs::file_size(model.out() / "model.safetensors")));
  CHECK(result.left_out.empty());

  const auto tensors = read_exported(model.out());
  CHECK(static_cast<int64_t>(tensors.size()) == result.tensors);
  const std::map<std::string, Shape> shapes = {{"transformer.wte.weight", {vocab, hidden}},
                                               {"transformer.wpe.weight", {5, hidden}},
                                               {"transformer.h.1.ln_1.weight", {hidden}},
                                               {"transformer.h.1.ln_1.bias", {hidden}},
                                               {"transformer.h.1.attn.c_attn.weight", {hidden, 3 * hidden}},
                                               {"transformer.h.1.attn.c_attn.bias", {3 * hidden}},
                                               {"transformer.h.1.attn.c_proj.weight", {hidden, hidden}},
                                               {"transformer.h.1.attn.c_proj.bias", {hidden}},
                                               {"transformer.h.1.ln_2.weight", {hidden}},
                                               {"transformer.h.1.ln_2.bias", {hidden}},
                                               {"transformer.h.1.mlp.c_fc.weight", {hidden, 10}},
                                               {"transformer.h.1.mlp.c_fc.bias", {10}},
                                               {"transformer.h.1.mlp.c_proj.weight", {10, hidden}},
                                               {"transformer.h.1.mlp.c_proj.bias", {hidden}},
                                               {"transformer.ln_f.weight", {hidden}},
                                               {"transformer.ln_f.bias", {hidden}}};
  CHECK(tensors.size() == 2 * shapes.size() - 4);  // two blocks; the first four and the last two tensors are outside
  for (const auto& [name, shape] : shapes) {
    INFO(name);
    REQUIRE(tensors.contains(name));
    CHECK(tensors.at(name).shape == shape);
    CHECK(tensors.at(name).dtype == DType::f32);
  }
  CHECK(!tensors.contains("lm_head.weight"));
  CHECK(tensors.at("transformer.wte.weight").at(6, 2) == model.value("embedding.token", 6, 2));
  CHECK(tensors.at("transformer.wpe.weight").at(4, 11) == model.value("embedding.position", 4, 11));
  const Exported& c_attn = tensors.at("transformer.h.1.attn.c_attn.weight");
  const Exported& c_proj = tensors.at("transformer.h.0.mlp.c_proj.weight");
  for (const int64_t out : {0, 13, 35}) {
    CHECK(c_attn.at(3, out) == model.value("blocks.1.attention.qkv.weight", out, 3));
    CHECK(tensors.at("transformer.h.1.attn.c_attn.bias").at(out) == model.value("blocks.1.attention.qkv.bias", out, 0));
  }
  CHECK(c_proj.at(9, 1) == model.value("blocks.0.ffn.out.weight", 1, 9));
  CHECK(tensors.at("transformer.h.1.ln_2.bias").at(5) == model.value("blocks.1.norm2.bias", 5, 0));
}

TEST_CASE("LLaMA is exported with fused tensors taken apart", "[hf]") {
  const SavedModel model(with(llama, {"model.num_kv_heads=1"}));
  export_hf(model.checkpoint(), model.out(), DType::f32);
  const auto tensors = read_exported(model.out());
  const std::string layer = "model.layers.1.";
  const std::map<std::string, Shape> shapes = {{"model.embed_tokens.weight", {vocab, hidden}},
                                               {layer + "input_layernorm.weight", {hidden}},
                                               {layer + "self_attn.q_proj.weight", {hidden, hidden}},
                                               {layer + "self_attn.k_proj.weight", {4, hidden}},
                                               {layer + "self_attn.v_proj.weight", {4, hidden}},
                                               {layer + "self_attn.o_proj.weight", {hidden, hidden}},
                                               {layer + "post_attention_layernorm.weight", {hidden}},
                                               {layer + "mlp.gate_proj.weight", {10, hidden}},
                                               {layer + "mlp.up_proj.weight", {10, hidden}},
                                               {layer + "mlp.down_proj.weight", {hidden, 10}},
                                               {"model.norm.weight", {hidden}},
                                               {"lm_head.weight", {vocab, hidden}}};
  CHECK(tensors.size() == 2 * shapes.size() - 3);
  for (const auto& [name, shape] : shapes) {
    INFO(name);
    REQUIRE(tensors.contains(name));
    CHECK(tensors.at(name).shape == shape);
  }
  CHECK(tensors.at(layer + "self_attn.q_proj.weight").at(11, 5) == model.value("blocks.1.attention.qkv.weight", 11, 5));
  CHECK(tensors.at(layer + "self_attn.k_proj.weight").at(0, 5) == model.value("blocks.1.attention.qkv.weight", 12, 5));
  CHECK(tensors.at(layer + "self_attn.v_proj.weight").at(3, 0) == model.value("blocks.1.attention.qkv.weight", 19, 0));
  CHECK(tensors.at(layer + "mlp.gate_proj.weight").at(9, 11) == model.value("blocks.1.ffn.in.weight", 9, 11));
  CHECK(tensors.at(layer + "mlp.up_proj.weight").at(0, 11) == model.value("blocks.1.ffn.in.weight", 10, 11));
  CHECK(tensors.at(layer + "mlp.down_proj.weight").at(2, 9) == model.value("blocks.1.ffn.out.weight", 2, 9));
  CHECK(tensors.at("lm_head.weight").at(6, 0) == model.value("head.weight", 6, 0));
}

TEST_CASE("Every element of a model is exported once", "[hf]") {
  for (const Overrides& overrides : std::vector<Overrides>{{},
                                                           {"model.tied_head=false", "model.activation=gelu"},
                                                           llama,
                                                           with(llama, {"model.bias=true", "model.tied_head=true"}),
                                                           with(llama, {"model.head_size=6", "model.qkv_bias=true"}),
                                                           with(llama, {"model.qk_norm=true"})}) {
    const SavedModel model(overrides);
    export_hf(model.checkpoint(), model.out(), DType::f32);
    std::vector<float> exported;
    for (const auto& [name, tensor] : read_exported(model.out())) {
      for (size_t i = 0; i < tensor.bytes.size() / 4; ++i) exported.push_back(tensor.at(static_cast<int64_t>(i)));
    }
    std::vector<float> saved;
    for (const TensorSpec& tensor : model.spec().tensors) {
      for (int64_t i = 0; i < tensor.count(); ++i) saved.push_back(model.value(tensor.name, 0, i));
    }
    std::sort(exported.begin(), exported.end());
    std::sort(saved.begin(), saved.end());
    CHECK(exported == saved);
  }
}

TEST_CASE("config.json holds what transformers has to know", "[hf]") {
  const auto config = [](const Overrides& overrides, DType dtype = DType::f32) {
    return nlohmann::json(hf_model(config_of(overrides), dtype).config);
  };
  auto gpt2 = config({"model.residual_dropout=0.1", "model.attention_dropout=0.2", "model.norm_eps=1e-6"});
  CHECK(gpt2["architectures"] == nlohmann::json{"GPT2LMHeadModel"});
  CHECK(gpt2["model_type"] == "gpt2");
  CHECK(gpt2["activation_function"] == "gelu_new");
  CHECK(gpt2["n_inner"] == 10);
  CHECK(gpt2["n_positions"] == 5);
  CHECK(gpt2["vocab_size"] == vocab);
  CHECK(gpt2["layer_norm_epsilon"] == 1e-6);
  CHECK(gpt2["embd_pdrop"] == 0.1);
  CHECK(gpt2["resid_pdrop"] == 0.1);
  CHECK(gpt2["attn_pdrop"] == 0.2);
  CHECK(gpt2["tie_word_embeddings"] == true);
  CHECK(gpt2["torch_dtype"] == "float32");
  CHECK(gpt2["eos_token_id"].is_null());
  CHECK(config({"model.activation=gelu"})["activation_function"] == "gelu");

  auto plain = config(with(llama, {"model.num_kv_heads=1", "model.rope_theta=500000.0"}), DType::bf16);
  CHECK(plain["model_type"] == "llama");
  CHECK(plain["num_key_value_heads"] == 1);
  CHECK(plain["head_dim"] == 4);
  CHECK(plain["intermediate_size"] == 10);
  CHECK(plain["rope_theta"] == 500000.0);
  CHECK(plain["rope_parameters"] == nlohmann::json{{"rope_type", "default"}, {"rope_theta", 500000.0}});
  CHECK(plain["attention_bias"] == false);
  CHECK(plain["mlp_bias"] == false);
  CHECK(plain["tie_word_embeddings"] == false);
  CHECK(plain["torch_dtype"] == "bfloat16");
  auto biased = config(with(llama, {"model.bias=true"}));
  CHECK(biased["attention_bias"] == true);
  CHECK(biased["mlp_bias"] == true);
  CHECK(config(with(llama, {"model.qk_norm=true"}))["architectures"] == nlohmann::json{"Qwen3ForCausalLM"});

  auto windowed = config(with(llama, {"model.attention_window=3", "model.head_size=6"}));
  CHECK(windowed["model_type"] == "mistral");
  CHECK(windowed["sliding_window"] == 3);
  CHECK(windowed["head_dim"] == 6);
  auto qwen2 = config(with(llama, {"model.attention_window=3", "model.qkv_bias=true"}));
  CHECK(qwen2["model_type"] == "qwen2");
  CHECK(qwen2["use_sliding_window"] == true);
  CHECK(qwen2["sliding_window"] == 3);
  CHECK(qwen2["max_window_layers"] == 0);
  CHECK(!qwen2.contains("layer_types"));
  CHECK(config(with(llama, {"model.qkv_bias=true"}))["use_sliding_window"] == false);
  auto alternating = config(with(llama, {R"(model.attention_pattern=["dense","band:3"])"}));
  CHECK(alternating["model_type"] == "ministral");
  CHECK(alternating["sliding_window"] == 3);
  CHECK(alternating["layer_types"] == nlohmann::json{"full_attention", "sliding_attention"});
  auto qwen3 = config(with(llama, {R"(model.attention_pattern=["dense","band:3"])", "model.qk_norm=true"}));
  CHECK(qwen3["model_type"] == "qwen3");
  CHECK(qwen3["use_sliding_window"] == true);
  CHECK(qwen3["max_window_layers"] == 1);
  CHECK(qwen3["layer_types"] == nlohmann::json{"full_attention", "sliding_attention"});
  auto neo = config(with(gpt_neo, {R"(model.attention_pattern=["dense","band:3"])", "model.residual_dropout=0.1"}));
  CHECK(neo["architectures"] == nlohmann::json{"GPTNeoForCausalLM"});
  CHECK(neo["attention_types"] == nlohmann::json::parse(R"([[["global","local"],1]])"));
  CHECK(neo["window_size"] == 3);
  CHECK(neo["embed_dropout"] == 0.1);
  CHECK(config({"model.attention_scale=1"})["scale_attn_weights"] == false);
  auto scaled =
      config(with(llama, {"model.rope_scaling=llama3", "model.rope_factor=8", "model.rope_original_length=4"}));
  CHECK(scaled["rope_parameters"] == nlohmann::json{{"rope_type", "llama3"},
                                                    {"rope_theta", 10000.0},
                                                    {"factor", 8.0},
                                                    {"low_freq_factor", 1.0},
                                                    {"high_freq_factor", 4.0},
                                                    {"original_max_position_embeddings", 4}});
  CHECK(scaled["rope_scaling"] == scaled["rope_parameters"]);
}

TEST_CASE("Gemma's config has its scales, caps, kinds of layers and their angles", "[hf]") {
  const auto config = [](const Overrides& overrides) {
    return nlohmann::json::parse(hf_model(config_of(overrides), DType::f32).config.dump());
  };
  const auto second = config(gemma2);
  CHECK(second["architectures"] == nlohmann::json{"Gemma2ForCausalLM"});
  CHECK(second["hidden_activation"] == "gelu_pytorch_tanh");
  CHECK(second["query_pre_attn_scalar"] == 4);
  CHECK(second["attn_logit_softcapping"] == 50.0);
  CHECK(second["final_logit_softcapping"] == 30.0);
  CHECK(second["sliding_window"] == 3);
  CHECK(second["layer_types"] == nlohmann::json{"sliding_attention", "full_attention"});
  CHECK(second["rope_parameters"] == nlohmann::json{{"rope_type", "default"}, {"rope_theta", 10000.0}});
  CHECK(second["pad_token_id"].is_null());
  const auto third = config(gemma3);
  CHECK(third["model_type"] == "gemma3_text");
  CHECK(third["query_pre_attn_scalar"] == 16);
  CHECK(third["attn_logit_softcapping"].is_null());
  CHECK(third["final_logit_softcapping"].is_null());
  CHECK(third["sliding_window_pattern"] == 2);
  CHECK(third["rope_theta"] == 1e6);
  CHECK(third["rope_local_base_freq"] == 1e4);
  const nlohmann::json global = {{"rope_type", "linear"}, {"rope_theta", 1e6}, {"factor", 8.0}};
  CHECK(third["rope_scaling"] == global);
  CHECK(third["rope_parameters"] ==
        nlohmann::json{{"full_attention", global},
                       {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}});
  std::vector<std::string> names;
  for (const HfTensor& tensor : hf_model(config_of(gemma3), DType::f32).tensors)
    if (tensor.source.starts_with("blocks.1.norm")) names.push_back(tensor.name.substr(std::strlen("model.layers.1.")));
  CHECK(names == std::vector<std::string>{"input_layernorm.weight", "post_attention_layernorm.weight",
                                          "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"});
}

TEST_CASE("What acts in training only and has no place is reported", "[hf]") {
  const auto left_out = [](const Overrides& overrides) { return hf_model(config_of(overrides), DType::f32).left_out; };
  CHECK(left_out({"model.residual_dropout=0.1"}).empty());
  CHECK(left_out({"model.z_loss=0.001"}) == Overrides{"model.z_loss = 0.001"});
  CHECK(left_out(with(llama, {"model.dropout=0.1", "model.z_loss=0.001"})) ==
        Overrides{"model.residual_dropout = 0.1", "model.z_loss = 0.001"});
}

TEST_CASE("A mix of keys that no class has is refused, naming every key", "[hf]") {
  CHECK(lacking(refusal({"model.norm=rmsnorm", "model.num_kv_heads=1"}),
                {"no Hugging Face class", "GPT2LMHeadModel: model.norm = \"rmsnorm\" (must be layernorm)",
                 "model.num_kv_heads = 1 (must be 3)", "LlamaForCausalLM: model.positions = \"learned\" (must be rope)",
                 "model.activation = \"gelu_tanh\" (must be swiglu)", "Qwen3ForCausalLM: ",
                 "model.qk_norm = false (must be true)", "model.bias = true (must be false)"}) == "");
  CHECK(lacking(refusal({"model.mup=4"}), {"GPT2LMHeadModel: model.mup = 4 (must be 0)\n"}) == "");
  CHECK(lacking(
            refusal({"model.attention_window=4"}),
            {"GPT2LMHeadModel: model.attention_pattern = [\"band:4\"] (must be [\"dense\"])\n",
             "GPTNeoForCausalLM: model.attention_scale = 0.0 (must be 1), model.qkv_bias = true (must be false)\n"}) ==
        "");
  CHECK(lacking(refusal(with(llama, {R"(model.attention_pattern=["band:4","band:3"])", "model.attention_scale=0.1"})),
                {"MistralForCausalLM: model.attention_pattern = [\"band:4\",\"band:3\"] (must be [\"dense\"] or "
                 "[\"band:W\"]), "
                 "model.attention_scale = 0.1 (must be 0)\n",
                 "MinistralForCausalLM: model.attention_pattern = [\"band:4\",\"band:3\"] (must be made of dense and "
                 "of band:W "
                 "with one W), model.attention_scale"}) == "");
  CHECK(lacking(refusal(with(llama, {"model.attention_softcap=50", "model.attention_sinks=true"})),
                {"LlamaForCausalLM: model.attention_softcap = 50.0 (must be 0), model.attention_sinks = true (must be "
                 "false)\n"}) == "");
  CHECK(lacking(refusal(with(gemma3, {"model.embedding_scale=3.46875", "model.attention_scale=0.3",
                                      R"(model.positions_pattern=["rope","none"])",
                                      R"(model.rope_scaling_pattern=["linear","linear"])"})),
                {"LlamaForCausalLM: ",
                 "model.norm_offset = true (must be false), model.norm_after = true (must be "
                 "false)",
                 "Gemma3ForCausalLM: model.embedding_scale = 3.46875 (must be 3.46410161513775",
                 "model.attention_scale = 0.3 (must be 1 / the root of a whole number), "
                 "model.positions_pattern = [\"rope\",\"none\"] (must be [\"rope\"]), "
                 "model.rope_scaling_pattern = [\"linear\",\"linear\"] (must be none in layers with a window)"}) == "");
  CHECK(hf_model(config_of(with(gemma3, {"model.embedding_scale=3.46875"})), DType::bf16).hf.architecture ==
        HfArchitecture::gemma3);
  CHECK(lacking(refusal(with(llama, {R"(model.attention_pattern=["band:3","dense"])",
                                     "model.rope_theta_pattern=[1e4,1e6]", "model.logit_softcap=9"})),
                {"MinistralForCausalLM: model.logit_softcap = 9.0 (must be 0), model.rope_theta_pattern = "
                 "[10000.0,1000000.0] (must be the same in all layers)\n"}) == "");
  CHECK(lacking(refusal({"model.bias=false"}), {"GPT2LMHeadModel: model.bias = false (must be true)"}) == "");
  CHECK(lacking(refusal(with(llama, {"model.qk_norm=true", "model.bias=true"})),
                {"LlamaForCausalLM: model.qk_norm = true (must be false)\n",
                 "Qwen3ForCausalLM: model.bias = true (must be false)"}) == "");
}

TEST_CASE("bf16 weights are the masters rounded to nearest", "[hf]") {
  const SavedModel model({});
  const HfExport result = export_hf(model.checkpoint(), model.out(), DType::bf16);
  const auto tensors = read_exported(model.out());
  const Exported& c_attn = tensors.at("transformer.h.0.attn.c_attn.weight");
  CHECK(c_attn.dtype == DType::bf16);
  uint16_t bits = 0;
  std::memcpy(&bits, c_attn.bytes.data() + 2 * (3 * 36 + 20), 2);
  CHECK(bits == to_bf16(model.value("blocks.0.attention.qkv.weight", 20, 3)).bits);
  CHECK(result.bytes < 2 * model.spec().parameters() + 4096);
  CHECK(read_config(model.out())["torch_dtype"] == "bfloat16");
}

TEST_CASE("Nothing is overwritten, and nothing is left behind by a failure", "[hf]") {
  const SavedModel model({});
  export_hf(model.checkpoint(), model.out(), DType::f32);
  const std::string before = read_file(model.out() / "model.safetensors");
  CHECK(lacking(usage_error([&] { export_hf(model.checkpoint(), model.out(), DType::bf16); }),
                {model.out().string(), "already exists"}) == "");
  CHECK(read_file(model.out() / "model.safetensors") == before);
  const fs::path empty = model.folder() / "empty";
  fs::create_directory(empty);
  CHECK(lacking(usage_error([&] { export_hf(model.checkpoint(), empty, DType::f32); }), {"already exists"}) == "");

  // A folder left by a killed export is replaced.
  const fs::path parent = model.folder() / "other";
  fs::create_directories(parent / ".tmp-hf" / "model.safetensors");
  export_hf(model.checkpoint(), parent / "hf", DType::f32);
  CHECK(read_file(parent / "hf" / "model.safetensors") == before);

  const fs::path data = model.checkpoint() / "rank-00000.safetensors";
  std::string text = read_file(data);
  text.back() = static_cast<char>(text.back() ^ 1);
  write_file(data, text);
  fs::remove_all(parent / "hf");
  CHECK(lacking(error_of([&] { export_hf(model.checkpoint(), parent / "hf", DType::f32); }),
                {data.string(), "is damaged", "checksum"}) == "");
  CHECK(fs::is_empty(parent));
}

TEST_CASE("Progress tells the bytes written of all", "[hf]") {
  const SavedModel model({});
  std::vector<int64_t> steps;
  int64_t announced = 0;
  const HfExport result =
      export_hf(model.checkpoint(), model.out(), DType::f32, WhichWeights::trained, [&](int64_t done, int64_t total) {
        steps.push_back(done);
        announced = total;
      });
  CHECK(static_cast<int64_t>(steps.size()) == result.tensors);
  CHECK(std::is_sorted(steps.begin(), steps.end()));
  CHECK(steps.back() == 4 * model.spec().parameters());
  CHECK(announced == steps.back());
}

TEST_CASE("Files have at most as many bytes as they may, and an index says what is where", "[hf]") {
  const SavedModel model(llama);
  const fs::path whole = model.folder() / "whole";
  export_hf(model.checkpoint(), whole, DType::f32);
  constexpr int64_t most = 1500;
  const HfExport result = export_hf(model.checkpoint(), model.out(), DType::f32, WhichWeights::trained, {}, most);
  CHECK(result.files > 3);
  CHECK(!fs::exists(model.out() / "model.safetensors"));
  const auto index = nlohmann::json::parse(read_file(model.out() / "model.safetensors.index.json"));
  CHECK(index["metadata"]["total_size"] == 4 * model.spec().parameters());
  const std::map<std::string, Exported> expected = read_exported(whole);
  size_t found = 0;
  for (int64_t i = 1; i <= result.files; ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i, result.files);
    const std::map<std::string, Exported> tensors = read_exported(model.out(), name);
    size_t bytes = 0;
    for (const auto& [tensor, exported] : tensors) {
      bytes += exported.bytes.size();
      CHECK(index["weight_map"][tensor] == name);
      CHECK(exported.bytes == expected.at(tensor).bytes);
    }
    CHECK((bytes <= most || tensors.size() == 1));
    found += tensors.size();
  }
  CHECK(found == expected.size());
}
