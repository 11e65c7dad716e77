// Preset shapes against the published sizes.
#include <algorithm>

#include "config/presets.h"
#include "model/spec/spec.h"
#include "support.h"

namespace gptrain::config_test {
namespace {

ModelConfig preset(const std::string& name) { return parse({"model.preset=" + name}, without_model).model; }

// Returns the whole model's parameters, from its shape.
int64_t num_parameters(const ModelConfig& m) {
  const int64_t h = m.hidden_size;
  const int64_t mlp_in = (is_gated(m.activation) ? 2 : 1) * m.ffn_hidden_size;
  int64_t block = h * (h + 2 * m.kv_size()) + h * h + h * mlp_in + m.ffn_hidden_size * h + 2 * h;
  if (m.bias) block += h + 2 * m.kv_size() + h + mlp_in + h + 2 * h;
  const int64_t embeddings =
      m.vocab_size * h * (m.tied_head ? 1 : 2) + (m.positions == PositionKind::learned ? m.sequence_length * h : 0);
  return m.num_layers * block + embeddings + h + (m.bias ? h : 0);
}

}  // namespace

TEST_CASE("GPT-2 124M has exactly its published parameters") {
  CHECK(num_parameters(preset("gpt2-124m")) == 124'439'808);
}

TEST_CASE("LLaMA 3 has exactly its published parameters") {
  CHECK(num_parameters(preset("llama3-8b")) == 8'030'261'248);
  CHECK(num_parameters(preset("llama3-70b")) == 70'553'706'496);
}

TEST_CASE("mixtures have exactly their published parameters") {
  const auto parameters = [](const std::string& name) { return make_spec(preset(name)).parameters(); };
  CHECK(parameters("mixtral-8x7b") == 46'702'792'704);
  CHECK(parameters("mixtral-8x22b") == 140'620'634'112);
  CHECK(parameters("qwen3-30b-a3b") == 30'532'122'624);
  CHECK(parameters("qwen3-235b-a22b") == 235'093'634'560);
  CHECK(parameters("grok-1-314b") == 315'684'820'992);
  // Decoders alone, without attention to an encoder.
  CHECK(parameters("switch-base-8-decoder") == 307'845'888);
  CHECK(parameters("switch-c-1.6t-decoder") == 785'560'087'520);
}

TEST_CASE("presets have the size that their names say") {
  for (const std::string& name : preset_names()) {
    INFO(name);
    if (preset(name).moe.is_on()) continue;
    const std::string size = name.substr(name.rfind('-') + 1);
    const double stated = std::stod(size) * (size.back() == 'b' ? 1e9 : 1e6);
    // Published names are rounded, most of all "30b" for 32.5 and "1b" for 1.1 billion.
    CHECK(static_cast<double>(num_parameters(preset(name))) == Approx(stated).epsilon(0.15));
  }
}

TEST_CASE("the Megatron rows reproduce the table's parameters in billions") {
  for (const std::string& name : preset_names()) {
    if (!name.starts_with("megatron-")) continue;
    INFO(name);
    const ModelConfig model = preset(name);
    const double billions = std::stod(name.substr(name.find('-') + 1));
    CHECK(static_cast<double>(num_parameters(model)) / 1e9 == Approx(billions).margin(0.06));
    CHECK(model.vocab_size == 51200);
    CHECK(model.sequence_length == 2048);
  }
}

TEST_CASE("a family's presets share its block") {
  const auto names = preset_names();
  CHECK(names.size() == 42);
  CHECK(std::count_if(names.begin(), names.end(), [](const auto& n) { return n.starts_with("megatron-"); }) == 10);
  CHECK(std::count_if(names.begin(), names.end(), [](const auto& n) { return n.starts_with("gpt3-"); }) == 8);
  for (const std::string& name : names) {
    INFO(name);
    const ModelConfig model = preset(name);
    const bool is_llama = name.starts_with("llama") || model.moe.is_on();
    CHECK(model.preset == name);
    CHECK(model.norm == (is_llama ? NormKind::rmsnorm : NormKind::layernorm));
    CHECK(model.norm_eps == (name.starts_with("qwen3") ? 1e-6 : 1e-5));
    if (name.starts_with("grok") || name.starts_with("switch")) continue;  // other activations, tied heads
    CHECK(model.activation == (is_llama ? ActivationKind::swiglu : ActivationKind::gelu_tanh));
    CHECK(model.positions == (is_llama ? PositionKind::rope : PositionKind::learned));
    CHECK(model.bias != is_llama);
    CHECK(model.tied_head != is_llama);
  }
}

TEST_CASE("shapes of single presets") {
  const ModelConfig gpt3 = preset("gpt3-175b");
  CHECK(gpt3.num_layers == 96);
  CHECK(gpt3.hidden_size == 12288);
  CHECK(gpt3.head_size == 128);
  CHECK(gpt3.vocab_size == 50257);
  CHECK(gpt3.ffn_hidden_size == 49152);
  CHECK(preset("gpt3-13b").hidden_size == 5120);
  CHECK(preset("gpt3-13b").num_heads == 40);
  const ModelConfig llama = preset("llama-70b");
  CHECK(llama.num_kv_heads == 8);
  CHECK(llama.kv_size() == 1024);
  CHECK(llama.ffn_hidden_size == 28672);
  CHECK(preset("llama-410m").ffn_hidden_size == 2752);
}

TEST_CASE("the file and overrides take precedence over the preset") {
  const std::string text = R"({"model": {"num_layers": 3, "preset": "llama-7b", "sequence_length": 512},
    "data": {"train": [{"path": "x"}]}, "batch": {"global": 1}, "optimizer": {"lr": 0.001},
    "run": {"steps": 1, "out": "x"}})";
  const ModelConfig model = parse({"model.sequence_length=64", "model.positions=learned"}, text).model;
  CHECK(model.num_layers == 3);
  CHECK(model.sequence_length == 64);
  CHECK(model.positions == PositionKind::learned);
  CHECK(model.hidden_size == 4096);
  CHECK(model.norm == NormKind::rmsnorm);
}

}  // namespace gptrain::config_test
