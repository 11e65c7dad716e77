// The table of fields: every row can be set, is in the schema, and describes itself.
#include <algorithm>
#include <map>
#include <set>

#include "config/presets.h"
#include "support.h"

namespace gptrain::config_test {
namespace {

struct Sample {
  std::string value;        // JSON text, different from the value in the base config
  Overrides prerequisites;  // settings that give the key an effect, or make the value valid
};

const Overrides llama3 = {"model.positions=rope", "model.rope_scaling=llama3", "model.rope_factor=4",
                          "model.rope_original_length=8192"};
const std::map<std::string, Sample> samples = {
    {"model.preset", {R"("gpt2-355m")", {}}},
    {"model.num_layers", {"3", {}}},
    {"model.hidden_size", {"384", {}}},
    {"model.num_heads", {"6", {}}},
    {"model.num_kv_heads", {"2", {}}},
    {"model.head_size", {"128", {}}},
    {"model.ffn_hidden_size", {"100", {}}},
    {"model.vocab_size", {"300", {}}},
    {"model.sequence_length", {"64", {}}},
    {"model.attention_pattern", {R"(["dense","band:100"])", {}}},
    {"model.attention_window", {"100", {}}},
    {"model.attention_scale", {"1.0", {}}},
    {"model.attention_softcap", {"50.0", {}}},
    {"model.attention_sinks", {"true", {}}},
    {"model.embedding_scale", {"16.0", {}}},
    {"model.logit_softcap", {"30.0", {}}},
    {"model.norm", {R"("rmsnorm")", {}}},
    {"model.norm_offset", {"true", {}}},
    {"model.norm_after", {"true", {}}},
    {"model.activation", {R"("gelu")", {}}},
    {"model.positions", {R"("rope")", {}}},
    {"model.positions_pattern", {R"(["rope","none"])", {"model.positions=rope"}}},
    {"model.rope_theta", {"500000.0", {"model.positions=rope"}}},
    {"model.rope_theta_pattern", {"[1000.0]", {"model.positions=rope"}}},
    {"model.rope_scaling_pattern", {R"(["linear"])", {"model.positions=rope", "model.rope_factor=4"}}},
    {"model.rope_scaling", {R"("linear")", {"model.positions=rope", "model.rope_factor=4"}}},
    {"model.rope_factor", {"8.0", {"model.positions=rope", "model.rope_scaling=linear"}}},
    {"model.rope_low_freq_factor", {"0.5", llama3}},
    {"model.rope_high_freq_factor", {"5.0", llama3}},
    {"model.rope_original_length",
     {"4096", {"model.positions=rope", "model.rope_scaling=llama3", "model.rope_factor=4"}}},
    {"model.qk_norm", {"true", {}}},
    {"model.bias", {"false", {}}},
    {"model.qkv_bias", {"false", {}}},
    {"model.tied_head", {"false", {}}},
    {"model.dropout", {"0.2", {}}},
    {"model.residual_dropout", {"0.2", {}}},
    {"model.attention_dropout", {"0.2", {}}},
    {"model.norm_eps", {"1e-6", {}}},
    {"model.init_std", {"0.01", {}}},
    {"model.z_loss", {"1e-4", {}}},
    {"model.moe",
     {R"({"experts":6,"top_k":4,"ffn_hidden_size":512,"shared":1,"shared_ffn_hidden_size":256,"shared_gate":"sigmoid",)"
      R"("every":2,"first":1,"score":"sigmoid","renormalise":false,"scale":2.5,"router_bias_rate":0.125,"groups":3,)"
      R"("group_top_k":2,"capacity":1.25,"capacity_over":"rank","drop":"position","aux_loss":0.5,)"
      R"("aux_over":"micro-batch","z_loss":0.25,"jitter":0.125})",
      {"model.bias=false"}}},
    {"model.mup", {"64", {}}},
    {"data.train", {R"([{"path":"a","weight":2.0}])", {}}},
    {"data.validation", {R"([{"path":"b","weight":1.0}])", {}}},
    {"data.temperature", {"2.0", {}}},
    {"data.phases", {R"([{"until_step":10,"weights":[2.0]}])", {}}},
    {"data.skip_samples", {R"([{"first":100,"count":8},{"first":7,"count":1}])", {}}},
    {"data.tokenizer", {R"("bytes")", {}}},
    {"data.checksums", {"false", {}}},
    {"data.mask_documents", {"true", {}}},
    {"data.max_documents", {"16", {"data.mask_documents=true"}}},
    {"batch.global", {"32", {}}},
    {"batch.micro", {"4", {}}},
    {"batch.accumulation", {"4", {"batch.micro=4"}}},
    {"parallel.tensor", {"3", {}}},
    {"parallel.context", {"2", {}}},
    {"parallel.context_method", {R"("ring")", {"parallel.context=2"}}},
    {"parallel.expert", {"2", {"parallel.tensor=2", "model.bias=false", R"(model.moe={"experts":4,"top_k":2})"}}},
    {"parallel.expert_tensor",
     {"2",
      {"parallel.tensor=2", "parallel.expert=2", "batch.micro=1", "model.bias=false",
       R"(model.moe={"experts":4,"top_k":2})"}}},
    {"parallel.expert_room",
     {"1.5", {"parallel.tensor=2", "parallel.expert=2", "model.bias=false", R"(model.moe={"experts":4,"top_k":2})"}}},
    {"parallel.expert_overflow",
     {R"("drop")",
      {"parallel.tensor=2", "parallel.expert=2", "model.bias=false", R"(model.moe={"experts":4,"top_k":2})"}}},
    {"parallel.pipeline", {"2", {}}},
    {"parallel.virtual_stages", {"3", {"parallel.pipeline=2", "parallel.pipeline_schedule=interleaved"}}},
    {"parallel.pipeline_schedule", {R"("gpipe")", {"parallel.pipeline=2"}}},
    {"parallel.rank_order", {R"("tensor-pipeline-data")", {"parallel.pipeline=2"}}},
    {"parallel.layers_per_stage", {"[4,8]", {"parallel.pipeline=2"}}},
    {"parallel.zero", {"2", {}}},
    {"parallel.zero_node_copy", {"true", {"parallel.zero=1"}}},
    {"parallel.sequence", {"true", {"parallel.tensor=2"}}},
    {"parallel.overlap_tensor", {"true", {"parallel.tensor=2"}}},
    {"parallel.elastic", {"true", {}}},
    {"precision.compute", {R"("bf16")", {}}},
    {"precision.residual", {R"("fp32")", {"precision.compute=bf16"}}},
    {"precision.reduce", {R"("bf16")", {}}},
    {"precision.gradients", {R"("bf16")", {"precision.compute=bf16-pure"}}},
    {"precision.linears", {R"("fp8")", {"precision.compute=bf16"}}},
    {"precision.weight_gradients", {R"("bf16")", {}}},
    {"precision.amax_history", {"16", {"precision.compute=bf16", "precision.linears=fp8"}}},
    {"precision.loss_scale", {"1024", {"precision.compute=fp16"}}},
    {"precision.loss_scale_window", {"100", {"precision.compute=fp16"}}},
    {"optimizer.type", {R"("lion")", {}}},
    {"optimizer.lr", {"0.002", {}}},
    {"optimizer.lr_scaling", {R"("sqrt")", {"optimizer.base_batch=64"}}},
    {"optimizer.base_batch", {"64", {"optimizer.lr_scaling=linear"}}},
    {"optimizer.betas", {"[0.8,0.99]", {}}},
    {"optimizer.eps", {"1e-6", {}}},
    {"optimizer.momentum", {"0.8", {"optimizer.type=sgd"}}},
    {"optimizer.trust_coefficient", {"0.01", {"optimizer.type=lars"}}},
    {"optimizer.beta2_decay", {"-0.7", {"optimizer.type=adafactor"}}},
    {"optimizer.clip_threshold", {"2.0", {"optimizer.type=adafactor"}}},
    {"optimizer.scale_parameter", {"false", {"optimizer.type=adafactor"}}},
    {"optimizer.eps2", {"0.01", {"optimizer.type=adafactor"}}},
    {"optimizer.newton_schulz", {R"("fp32")", {"optimizer.type=muon"}}},
    {"optimizer.qk_clip", {"100.0", {"optimizer.type=muon"}}},
    {"optimizer.nesterov", {"true", {"optimizer.type=sgd"}}},
    {"optimizer.weight_decay", {"0.0", {}}},
    {"optimizer.clip_norm", {"0.0", {}}},
    {"optimizer.ema", {"0.999", {}}},
    {"optimizer.freeze_step", {"100", {"optimizer.type=onebit-adam"}}},
    {"optimizer.variance_scaler", {"8", {"optimizer.type=zero-one-adam", "optimizer.freeze_step=100"}}},
    {"optimizer.local_scaler", {"100", {"optimizer.type=zero-one-adam", "optimizer.freeze_step=100"}}},
    {"optimizer.local_most", {"4", {"optimizer.type=zero-one-adam", "optimizer.freeze_step=100"}}},
    {"schedule.type", {R"("linear")", {}}},
    {"schedule.warmup_steps", {"10", {}}},
    {"schedule.decay_steps", {"10", {"schedule.type=wsd"}}},
    {"schedule.min_lr", {"1e-5", {"schedule.type=cosine"}}},
    {"memory.recompute", {R"("block")", {}}},
    {"memory.recompute_interval", {"3", {"memory.recompute=every_nth"}}},
    {"memory.activation_budget", {"1000000", {"memory.recompute=optimal"}}},
    {"memory.offload_activations", {R"("hidden")", {}}},
    {"memory.activation_bits", {"3", {}}},
    {"memory.saved_inputs", {"8", {}}},
    {"comm.compression", {R"({"kind":"int8","error":false,"start_step":3,"min_elements":4096,"between":"nodes"})", {}}},
    {"comm.weights", {R"("int8")", {"parallel.zero=3", "precision.compute=bf16"}}},
    {"comm.hierarchy", {R"("node")", {}}},
    {"comm.ranks_per_node", {"4", {}}},
    {"parallel.local_steps", {R"({"islands":1,"every":4,"start_step":2,"outer":"average"})", {}}},
    {"memory.linear_projection", {R"({"kind":"rows","share":0.5,"sites":["ffn_out"]})", {}}},
    {"memory.loss_chunk_tokens", {"128", {}}},
    {"memory.offload_optimizer", {R"("disk")", {"memory.disk_path=/scratch"}}},
    {"memory.offload_optimizer_share", {"0.5", {"memory.offload_optimizer=disk", "memory.disk_path=/scratch"}}},
    {"memory.offload_update", {R"("delayed")", {"memory.offload_optimizer=disk", "memory.disk_path=/scratch"}}},
    {"memory.update_threads", {"3", {"memory.offload_optimizer=disk", "memory.disk_path=/scratch"}}},
    {"memory.offload_parameters", {R"("fit")", {"memory.offload_optimizer=fit", "memory.disk_path=/scratch"}}},
    {"memory.offload_gradients", {R"("disk")", {"memory.offload_optimizer=disk", "memory.disk_path=/scratch"}}},
    {"memory.disk_path", {R"("/scratch")", {"memory.offload_optimizer=disk"}}},
    {"memory.disk_units", {"8", {"memory.offload_optimizer=disk", "memory.disk_path=/scratch"}}},
    {"memory.disk_clones", {R"("never")", {"memory.offload_optimizer=disk", "memory.disk_path=/scratch"}}},
    {"memory.disk_transfer_bytes", {"65536", {"memory.offload_optimizer=disk", "memory.disk_path=/scratch"}}},
    {"memory.disk_depth", {"4", {"memory.offload_optimizer=disk", "memory.disk_path=/scratch"}}},
    {"checkpoint.every_steps", {"10", {}}},
    {"checkpoint.every_seconds", {"600.0", {}}},
    {"checkpoint.asynchronous", {"false", {}}},
    {"checkpoint.keep_last", {"5", {}}},
    {"checkpoint.keep_every", {"100", {}}},
    {"log.every_steps", {"5", {}}},
    {"comm.timeout_seconds", {"7.5", {}}},
    {"comm.interface", {R"("eth0")", {}}},
    {"comm.mixed_machines", {"true", {}}},
    {"comm.compare_every_steps", {"7", {}}},
    {"run.steps", {"7", {}}},
    {"run.seed", {"9223372036854775808", {}}},
    {"run.out", {R"("runs/other")", {}}},
    {"run.device", {R"("cpu")", {}}},
    {"run.threads", {"3", {}}},
    {"run.thread_independent", {"true", {}}},
    {"run.deterministic", {"false", {}}},
    {"run.algorithm_cache", {R"("none")", {}}},
    {"run.max_skipped_steps", {"0", {}}},
    {"run.rollback",
     {R"({"spike":3.5,"window":10,"skip_samples":64,"steps":2,"limit":1})", {"checkpoint.every_steps=10"}}},
    {"run.validate_every_steps", {"50", {R"(data.validation=[{"path": "v"}])"}}},
    {"run.validation_samples", {"8", {R"(data.validation=[{"path": "v"}])"}}},
    {"run.validate_ema", {"true", {"optimizer.ema=0.999", R"(data.validation=[{"path": "v"}])"}}},
    {"run.sample_every_steps", {"20", {}}},
    {"run.sample_tokens", {"8", {"run.sample_every_steps=20"}}},
    {"run.sample_prompt", {R"("The ")", {"run.sample_every_steps=20"}}},
};

}  // namespace

TEST_CASE("every field can be set by an override, and reads back") {
  CHECK(samples.size() == fields().size());
  for (const Field& field : fields()) {
    INFO(field.path);
    REQUIRE(samples.contains(field.path));
    const Sample& sample = samples.at(field.path);
    Overrides overrides = sample.prerequisites;
    overrides.push_back(field.path + "=" + sample.value);
    const std::vector<std::string> of_signs = {"optimizer.freeze_step", "optimizer.variance_scaler",
                                               "optimizer.local_scaler", "optimizer.local_most"};
    // One rank has nothing to send.
    const int64_t ranks = std::find(of_signs.begin(), of_signs.end(), field.path) != of_signs.end() ? 2 : 1;
    const RunConfig config = parse(overrides, base, ranks);
    if (field.get) CHECK(field.get(config) == Json::parse(sample.value));
  }
}

TEST_CASE("every sample but those of one value differs from the base config") {
  const Json before = all_values(parse({}));
  const std::set<std::string> one_value = {"precision.residual"};
  for (const Field& field : fields()) {
    INFO(field.path);
    if (field.get && !one_value.contains(field.path)) {
      CHECK(before[field.path] != Json::parse(samples.at(field.path).value));
    }
  }
}

TEST_CASE("the table lists sections in order and each key once") {
  CHECK(section_names() == std::vector<std::string>{"model", "data", "batch", "parallel", "precision", "optimizer",
                                                    "schedule", "memory", "checkpoint", "log", "comm", "run"});
  std::set<std::string> paths;
  for (const Field& field : fields()) {
    INFO(field.path);
    CHECK(paths.insert(field.path).second);
    CHECK_FALSE(field.description.empty());
    CHECK(find_field(field.path) == &field);
  }
  CHECK(find_field("model.nothing") == nullptr);
}

TEST_CASE("every example of a field passes its own rule") {
  for (const Field& field : fields()) {
    INFO(field.path);
    Faults faults;
    check_value(field.rule, field.path, Json::parse(field.example), field.example, faults);
    CHECK(faults.lines().empty());
  }
}

TEST_CASE("the schema lists every field with description, range or words, and default") {
  const Json schema = Json::parse(config_schema());
  CHECK(schema["$schema"] == "https://json-schema.org/draft/2020-12/schema");
  CHECK(schema["required"] == Json::array({"model", "data", "batch", "optimizer", "run"}));
  CHECK(schema["additionalProperties"] == false);
  size_t listed = 0;
  for (const auto& [name, section] : schema["properties"].items()) {
    CHECK(section["additionalProperties"] == false);
    listed += section["properties"].size();
  }
  CHECK(listed == fields().size());
  for (const Field& field : fields()) {
    INFO(field.path);
    const Json& entry = schema["properties"][field.section()]["properties"].at(field.key());
    CHECK(entry["description"].get<std::string>().starts_with(field.description));
    CHECK((entry.contains("type") || entry.contains("enum") || entry.contains("anyOf")));
    CHECK((entry.contains("default") || entry.contains("examples")));
  }
  const Json& model = schema["properties"]["model"];
  CHECK(model["anyOf"][0] == Json::parse(R"({"required": ["preset"]})"));
  CHECK(model["anyOf"][1]["required"].size() == 5);
  CHECK(model["properties"]["preset"]["enum"] == preset_names());
  CHECK(model["properties"]["num_layers"]["minimum"] == 1);
  CHECK(model["properties"]["norm_eps"]["exclusiveMinimum"] == 0.0);
  CHECK(model["properties"]["norm_eps"]["default"] == 1e-5);
  CHECK(schema["properties"]["run"]["properties"]["device"]["enum"] == Json::array({"auto", "cpu", "cuda"}));
  const Json& source = schema["properties"]["data"]["properties"]["train"]["items"];
  CHECK(source["required"] == Json::array({"path"}));
  CHECK(source["properties"]["path"]["description"].get<std::string>().find("working directory") != std::string::npos);
}

}  // namespace gptrain::config_test
