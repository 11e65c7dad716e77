// The output of `config show` loads back to the same config, for every file of configs/ and every preset.
#include <filesystem>

#include "config/presets.h"
#include "support.h"

namespace gptrain::config_test {
namespace {

void check_round_trip(const RunConfig& config) {
  const std::string shown = show_config(config);
  INFO(shown);
  const RunConfig again = parse_config(shown, {}, "shown.json");
  CHECK(all_values(again) == all_values(config));
  CHECK(show_config(again) == shown);
}

}  // namespace

TEST_CASE("every file of configs/ loads and comes back from show_config") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CONFIGS_DIR)) {
    INFO(entry.path());
    // Device and cluster profiles are in subfolders.
    if (entry.is_directory() || entry.path().extension() == ".md") continue;
    REQUIRE(entry.path().extension() == ".json");
    check_round_trip(load_config(entry.path(), {}));
    ++files;
  }
  CHECK(files >= 15);
}

TEST_CASE("every preset comes back from show_config") {
  for (const std::string& name : preset_names()) check_round_trip(parse({"model.preset=" + name}, without_model));
}

TEST_CASE("keys that have an effect only under some value come back") {
  check_round_trip(parse({"schedule.type=wsd", "schedule.decay_steps=10", "schedule.min_lr=1e-7"}));
  check_round_trip(parse({"schedule.type=linear"}));
  check_round_trip(parse({"memory.recompute=every_nth", "memory.recompute_interval=3"}));
  check_round_trip(parse({"memory.recompute=optimal"}));
  check_round_trip(parse({"memory.recompute=optimal", "memory.activation_budget=1000000"}));
  for (const char* const value : {"none", "hidden", "all", "1"})
    check_round_trip(parse({std::string("memory.offload_activations=") + value}));
  check_round_trip(parse({"model.positions=rope", "model.rope_theta=500000.5"}));
  check_round_trip(parse({"model.preset=llama-7b", "model.positions=learned"}));
  check_round_trip(
      parse({R"(data.validation=[{"path": "v\"\\\n\u00e9", "weight": 0.1}])", "run.validation_samples=3"}));
  check_round_trip(parse({"run.seed=18446744073709551615", "optimizer.lr=0.1", "optimizer.weight_decay=4.9e-324"}));
  check_round_trip(parse({"model.dropout=0.3", "precision.compute=bf16", "precision.residual=fp32"}));
  check_round_trip(parse({"precision.compute=bf16-pure"}));
  check_round_trip(parse({R"(memory.linear_projection={"kind": "gauss", "sites": ["ffn_out", "qkv"]})"}));
  check_round_trip(parse({"parallel.tensor=4", "parallel.sequence=true", "parallel.zero=3"}));
}

TEST_CASE("show_config prints derived values and leaves out keys without effect") {
  const Json shown = Json::parse(show_config(parse({})));
  CHECK(shown["model"]["num_kv_heads"] == 12);
  CHECK(shown["model"]["ffn_hidden_size"] == 3072);
  CHECK(shown["batch"]["accumulation"] == 2);
  CHECK(shown["precision"]["residual"] == "fp32");
  CHECK_FALSE(shown["schedule"].contains("min_lr"));
  CHECK_FALSE(shown["model"].contains("rope_theta"));
  CHECK_FALSE(shown["model"].contains("dropout"));
  CHECK_FALSE(shown["model"].contains("preset"));
}

TEST_CASE("values without effect hold their defaults") {
  const RunConfig config = parse({"model.preset=llama-7b", "model.positions=learned"});
  CHECK(config.model.rope_theta == ModelConfig{}.rope_theta);
}

}  // namespace gptrain::config_test
