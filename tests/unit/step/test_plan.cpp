#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "catch.h"
#include "config/presets.h"
#include "fit/choose_step.h"
#include "model/spec/shard.h"
#include "model_fixture.h"
#include "ops/footprint.h"
#include "report/dry_run.h"
#include "report/formulas.h"
#include "step/plan_step.h"
#include "unit/named_target.h"
#include "unit/preset_fixture.h"

using namespace gptrain;
using gptrain::testing::cpu_target;
using gptrain::testing::Family;
using gptrain::testing::find_target;
using gptrain::testing::preset_config;
using gptrain::testing::small_config;

namespace {

int64_t padded_elements(const ModelSpec& spec) {
  int64_t sum = 0;
  for (const TensorShard& shard : shard_tensors(spec, {})) {
    sum += (shard.count() + segment_multiple - 1) / segment_multiple * segment_multiple;
  }
  return sum;
}

// Bytes that a block saves beyond the published formula: log-sum-exp and norm statistics, f32.
int64_t small_terms(const ModelConfig& m, int64_t micro) {
  const int64_t statistics = m.norm == NormKind::layernorm ? 4 : 2;
  return 4 * micro * m.sequence_length * (m.num_heads + statistics);
}

}  // namespace

TEST_CASE("the model FLOPs that ops report add up to the closed formula, for every preset") {
  for (const std::string& name : preset_names()) {
    INFO(name);
    const RunConfig config = preset_config(name);
    const StepPlan plan = plan_rank({config, cpu_target()});
    CHECK(to_string(plan.total().model_flops) == to_string(model_flops_formula(config.model, config.batch.global)));
    CHECK(plan.total().executed_flops >= plan.total().model_flops);
  }
}

TEST_CASE("an attention window takes model FLOPs by pairs and executed ones by tiles") {
  const RunConfig whole = preset_config("gpt2-124m");
  const int64_t length = whole.model.sequence_length, heads = whole.model.num_heads * whole.model.num_layers * 8;
  const OpTotals all = plan_rank({whole, cpu_target()}).total();
  for (const int64_t window : {1, 2, 63, 64, 65, 100, 1023, 1024}) {
    INFO(window);
    const RunConfig config = preset_config("gpt2-124m", {"model.attention_window=" + std::to_string(window)});
    const OpTotals total = plan_rank({config, cpu_target()}).total();
    CHECK(to_string(total.model_flops) == to_string(model_flops_formula(config.model, 8)));
    int64_t tiles_less = 0, pairs = 0;
    for (int64_t query = 0; query < length; ++query) {
      pairs += std::min(query + 1, window);
      if (query % 64 == 0 && query >= window) tiles_less += (query - window + 1) / 64;
    }
    // Two products in forward and four in backward, or five as executed; half the square counts without a window.
    const int64_t pairs_less = window == length ? 0 : length * length / 2 - pairs;
    CHECK(static_cast<int64_t>(all.model_flops - total.model_flops) == 2 * 64 * 6 * heads * pairs_less);
    CHECK(static_cast<int64_t>(all.executed_flops - total.executed_flops) == 2 * 64 * 7 * heads * 64 * 64 * tiles_less);
  }
}

TEST_CASE("layers of two kinds are planned each by its own pairs and tiles") {
  const auto total = [](const std::string& pattern) {
    return plan_rank({preset_config("gpt2-124m", {"model.attention_pattern=" + pattern}), cpu_target()}).total();
  };
  const OpTotals dense = total(R"(["dense"])"), band = total(R"(["band:100"])");
  const OpTotals third = total(R"(["dense","band:100","dense"])");
  CHECK(3 * third.model_flops == 2 * dense.model_flops + band.model_flops);
  CHECK(3 * third.executed_flops == 2 * dense.executed_flops + band.executed_flops);
  const RunConfig config = preset_config("gpt2-124m", {R"(model.attention_pattern=["dense","band:100","dense"])"});
  CHECK(to_string(third.model_flops) == to_string(model_flops_formula(config.model, 8)));
}

TEST_CASE("bf16-pure has no master weights but of norms: 14 bytes for a parameter instead of 18") {
  for (const int zero : {0, 1, 2, 3}) {
    INFO("zero " << zero);
    const std::string stage = fmt::format("parallel.zero={}", zero);
    const auto plan_of = [&](const char* compute, int world_size) {
      const std::string precision = std::string("precision.compute=") + compute;
      return plan_rank({preset_config("gpt2-124m", {precision, stage}, world_size), cpu_target(), world_size}, 0);
    };
    const StepPlan mixed = plan_of("bf16", 2), pure = plan_of("bf16-pure", 2);
    const MemoryPlan &a = mixed.memory().arenas, &b = pure.memory().arenas;
    CHECK(a[MemoryClass::master] > 0);
    CHECK(b[MemoryClass::master] == 0);
    // Master weights of all norms are beside the weights: 25 layer norms with bias, on every rank.
    CHECK(b[MemoryClass::weights] - a[MemoryClass::weights] == (zero == 0 ? 4 * 25 * 2 * 768 : 0));
    for (const MemoryClass c : {MemoryClass::gradients, MemoryClass::optimizer, MemoryClass::gathered,
                                MemoryClass::buckets, MemoryClass::activations})
      CHECK(a[c] == b[c]);
    // The update reads and writes 2 bytes of weights each, instead of reading 4 and writing 4 + 2.
    const auto moved = [](const StepPlan& plan) { return plan.ops[op_index<AdamW>].bytes_moved; };
    CHECK(moved(pure) < moved(mixed) * 27 / 32);
  }
}

TEST_CASE("codes of 8 bits are moved with the scales of their blocks") {
  constexpr int64_t rows = 3, cols = 300, scales_of_row = 3;  // one scale per 128 columns
  const auto matrix = [](DType dtype, int64_t of_rows, int64_t of_cols) {
    return Matrix(nullptr, dtype, of_rows, of_cols);
  };
  const Matrix x = matrix(DType::bf16, rows, cols), codes = matrix(DType::u8, rows, cols),
               scales = matrix(DType::f32, rows, scales_of_row);
  constexpr int64_t moved = rows * (cols * (2 + 1) + scales_of_row * 4);
  CHECK(footprint(EncodeBlocks{.x = x, .codes = codes, .scales = scales}, cpu_target()).bytes_moved == moved);
  CHECK(footprint(DecodeBlocks{.codes = codes, .scales = scales, .x = x}, cpu_target()).bytes_moved == moved);

  constexpr int64_t blocks = 5, elements = blocks * 256;
  AdamW8bit update;
  update.gradients = update.master = matrix(DType::f32, 1, elements);
  update.columns[0] = update.columns[1] = matrix(DType::u8, 1, elements);
  update.scales[0] = update.scales[1] = matrix(DType::f32, 1, blocks);
  // Read: gradients. Read and written: master weights, codes of two moments, and their scales.
  CHECK(footprint(update, cpu_target()).bytes_moved == elements * (4 + 2 * 4 + 2 * 2 * 1) + 2 * 2 * blocks * 4);
}

TEST_CASE("documents cost the memory of their places, and count as if nothing were masked") {
  const RunConfig plain = preset_config("gpt2-124m", {"batch.micro=8", "batch.global=8"});
  const RunConfig masked = preset_config("gpt2-124m", {"batch.micro=8", "batch.global=8", "data.mask_documents=true"});
  const StepPlan before = plan_rank({plain, cpu_target()}), after = plan_rank({masked, cpu_target()});
  CHECK(after.total().model_flops == before.total().model_flops);
  // One micro-batch on the device, and those read ahead.
  CHECK(after.memory().arenas[MemoryClass::data] - before.memory().arenas[MemoryClass::data] ==
        (1 + prefetch_ring(masked, cpu_target()).depth) * 8 * 1024 * 4);
  // The library does not serve document masks: its workspace for score gradients is not needed.
  const Target gpu = find_target("h100");
  CHECK(plan_rank({masked, gpu}).memory().scratch_bytes < plan_rank({plain, gpu}).memory().scratch_bytes);
  // With room for documents it does: score gradients for each document, in pieces as large as before, and the table.
  const auto with_room = [&](int64_t documents) {
    const RunConfig config = preset_config("gpt2-124m", {"batch.micro=8", "batch.global=8", "data.mask_documents=true",
                                                         "data.max_documents=" + std::to_string(documents)});
    CHECK(plan_rank({config, cpu_target()}).memory().scratch_bytes == after.memory().scratch_bytes);
    return plan_rank({config, gpu}).memory().scratch_bytes;
  };
  const int64_t micro = plain.batch.micro, heads = plain.model.num_heads, length = plain.model.sequence_length;
  const auto needed = [&](int64_t sequences, int64_t documents) {
    const int64_t table = 256 + micro * 11 * ((8 * (documents + 1) + 255) / 256 * 256);
    return table + (8 << 20) + sequences * heads * documents * (2 * length * length + 4 * length);
  };
  CHECK(with_room(2) == needed(micro, 2));
  CHECK(with_room(33) == needed(1, 33));  // more sequences in a piece would exceed the preferred size
}

TEST_CASE("a plan for a GPU warns of room for documents that its library never serves") {
  const auto warnings = [](const std::vector<std::string>& overrides, const Target& target) {
    std::vector<std::string> all = {"data.mask_documents=true", "precision.compute=bf16"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return plan_rank({preset_config("gpt2-124m", all), target}).warnings;
  };
  const Target gpu = find_target("h100");
  CHECK(warnings({}, gpu) == "");
  CHECK(warnings({"data.max_documents=8"}, gpu) == "");
  const std::string both = warnings({"data.max_documents=8", "model.attention_dropout=0.1"}, gpu);
  CHECK(both.starts_with("attention_backward "));
  CHECK(both.find("\nattention_forward ") != std::string::npos);
  CHECK(both.find(": a library wants 16 bits, no dropout, ") != std::string::npos);
  CHECK(both.ends_with("; own kernels compute it\n"));
  CHECK(std::count(both.begin(), both.end(), '\n') == 2);  // each once, for twelve blocks
  CHECK(warnings({"data.max_documents=8", "model.attention_dropout=0.1"}, cpu_target()) == "");
  // Score gradients of 1024 documents: 2 GiB per head. For 4096: more than a piece may have.
  CHECK(warnings({"data.max_documents=1024"}, gpu) == "");
  const std::string backward = warnings({"data.max_documents=4096", "model.sequence_length=4096"}, gpu);
  CHECK(backward.starts_with("attention_backward "));
  CHECK(std::count(backward.begin(), backward.end(), '\n') == 1);
}

TEST_CASE("validation has the scratch that it wants where dropout keeps training from the library's attention") {
  const auto scratch_bytes = [](const char* documents) {
    const RunConfig config = preset_config(
        "gpt2-124m", {"data.mask_documents=true", documents, "model.attention_dropout=0.1", "batch.global=1024",
                      "batch.micro=1024", "model.num_layers=1", "model.num_heads=2", "model.hidden_size=16"});
    return plan_rank({config, find_target("h100")}).memory().scratch_bytes;
  };
  const int64_t table = 4096 + 1024 * 11 * ((8 * 1025 + 255) / 256 * 256);
  CHECK(scratch_bytes("data.max_documents=0") < 72 << 20);
  CHECK(scratch_bytes("data.max_documents=1024") == table + (8 << 20));
}

TEST_CASE("model FLOPs do not depend on recomputation or micro-batches, executed ones do") {
  const RunConfig plain = preset_config("gpt2-124m");
  const RunConfig block = preset_config("gpt2-124m", {"memory.recompute=block"});
  const RunConfig single = preset_config("gpt2-124m", {"batch.micro=1"});
  const OpTotals base = plan_rank({plain, cpu_target()}).total();
  const OpTotals recomputed = plan_rank({block, cpu_target()}).total();
  CHECK(recomputed.model_flops == base.model_flops);
  CHECK(recomputed.executed_flops > base.executed_flops);
  CHECK(plan_rank({single, cpu_target()}).total().model_flops == base.model_flops);
}

TEST_CASE("the reference formula gives the published test vector") {
  ModelConfig m;
  m.num_layers = 96;
  m.hidden_size = 12288;
  m.num_heads = 96;
  m.vocab_size = 51200;
  m.sequence_length = 2048;
  const double seconds = static_cast<double>(reference_flops_formula(m, 1536)) / (1024 * 138e12);
  CHECK(seconds == Approx(31.9).margin(0.05));
}

TEST_CASE("totals of the largest preset do not overflow") {
  const RunConfig config = preset_config("megatron-1008b", {"batch.global=3072", "batch.micro=1", "run.steps=1000000"});
  const StepPlan plan = plan_rank({config, cpu_target()});
  CHECK(to_string(plan.total().model_flops).size() > 19);  // beyond 2^63
  const DryRun input{.config = config,
                     .target = cpu_target(),
                     .spec = *plan.design->spec,
                     .memory = plan.memory().arenas,
                     .ops = plan.ops,
                     .checkpoint = {},
                     .rate = std::nullopt,
                     .sources = {}};
  const auto json = nlohmann::json::parse(dry_run_json(input));
  CHECK(json["total_model_flops"].get<double>() ==
        Approx(1e6 * static_cast<double>(model_flops_formula(config.model, 3072))).epsilon(1e-12));
}

TEST_CASE("weights, gradients, master weights and optimizer state take the bytes of the closed formulas") {
  const RunConfig mixed = preset_config("gpt2-124m");
  const StepPlan plan = plan_rank({mixed, cpu_target()});
  const int64_t elements = padded_elements(*plan.design->spec);
  CHECK(elements - plan.design->spec->parameters() == 47 * 768);  // padding rows of the vocabulary, and no others
  CHECK(plan.memory().arenas[MemoryClass::weights] == 2 * elements);
  CHECK(plan.memory().arenas[MemoryClass::gradients] == 4 * elements);
  CHECK(plan.memory().arenas[MemoryClass::master] == 4 * elements);
  CHECK(plan.memory().arenas[MemoryClass::optimizer] == 8 * elements);

  const StepPlan full = plan_rank({preset_config("gpt2-124m", {"precision.compute=fp32"}), cpu_target()});
  CHECK(full.memory().arenas[MemoryClass::weights] == 4 * elements);
  CHECK(full.memory().arenas[MemoryClass::master] == 0);
}

TEST_CASE("a block keeps 32 s b h bytes in 16 bits, and the log-sum-exp and norm statistics") {
  for (const char* name : {"gpt2-124m", "gpt3-1.3b", "megatron-1.7b"}) {
    const RunConfig config = preset_config(name);
    RunConfig deeper = config;
    deeper.model.num_layers += 1;
    const int64_t one_block = plan_rank({deeper, cpu_target()}).memory().arenas[MemoryClass::activations] -
                              plan_rank({config, cpu_target()}).memory().arenas[MemoryClass::activations];
    CHECK(one_block == published_block_activation_bytes(config.model, config.batch.micro) +
                           small_terms(config.model, config.batch.micro));
  }
}

TEST_CASE("full recomputation keeps 2 s b h bytes of a block, every other block half of the rest") {
  const RunConfig config = preset_config("gpt2-124m", {"memory.recompute=block"});
  RunConfig deeper = config;
  deeper.model.num_layers += 1;
  const int64_t one_block = plan_rank({deeper, cpu_target()}).memory().arenas[MemoryClass::activations] -
                            plan_rank({config, cpu_target()}).memory().arenas[MemoryClass::activations];
  CHECK(one_block == 2 * config.batch.micro * config.model.sequence_length * config.model.hidden_size);
}

TEST_CASE("a GPU's products take the tanh form of GELU along in 16 bits, which saves a buffer") {
  const auto calls = [](const StepPlan& plan, size_t op) { return plan.ops[op].calls; };
  const auto plan_of = [](const Target& target, const std::string& changed) {
    // A short chunk of logits, so that the FFN's gradient is the largest temporary.
    return plan_rank({preset_config("gpt2-124m", {"memory.loss_chunk_tokens=64", changed}), target});
  };
  const Target gpu = find_target("h100");
  const StepPlan fused = plan_of(gpu, "precision.compute=bf16");
  CHECK(calls(fused, op_index<ActivationForward>) == 0);
  CHECK(calls(fused, op_index<ActivationBackward>) == 0);
  for (const char* unfused : {"model.activation=gelu", "precision.compute=fp32"})
    CHECK(calls(plan_of(gpu, unfused), op_index<ActivationForward>) == 4 * 12);
  const StepPlan on_cpu = plan_of(cpu_target(), "precision.compute=bf16");
  CHECK(calls(on_cpu, op_index<ActivationForward>) == 4 * 12);
  CHECK(to_string(fused.total().model_flops) == to_string(on_cpu.total().model_flops));
  const int64_t buffer = 2 * 1024 * 3072 * dtype_bytes(DType::bf16);
  CHECK(plan_of(gpu, "model.activation=gelu").memory().frame_bytes >= buffer);
  CHECK(fused.memory().frame_bytes < buffer);
}

TEST_CASE("a GPU has the logits of four times as many rows at a time as the CPU, unless a config says how many") {
  // A micro-batch of 8192 rows, and little beside its logits.
  const auto frame_bytes = [](const Target& target, const char* rows) {
    return plan_rank({preset_config("gpt2-124m", {"batch.global=8", "batch.micro=8", "model.num_layers=1",
                                                  "model.num_heads=1", "model.hidden_size=64", rows}),
                      target})
        .memory()
        .frame_bytes;
  };
  const int64_t row = 50304 * dtype_bytes(DType::bf16);
  const Target gpu = find_target("h100");
  CHECK(frame_bytes(gpu, "memory.loss_chunk_tokens=0") == frame_bytes(gpu, "memory.loss_chunk_tokens=8192"));
  CHECK(frame_bytes(cpu_target(), "memory.loss_chunk_tokens=0") ==
        frame_bytes(cpu_target(), "memory.loss_chunk_tokens=2048"));
  CHECK(frame_bytes(gpu, "memory.loss_chunk_tokens=8192") - frame_bytes(gpu, "memory.loss_chunk_tokens=2048") ==
        6144 * row);
}

TEST_CASE("the dry run's JSON has every promised key and agrees with its parts") {
  const RunConfig config = preset_config("gpt2-124m");
  const StepPlan plan = plan_rank({config, cpu_target()});
  const int64_t saved = checkpoint_bytes(*plan.design->spec, config);
  CHECK(plan.written_bytes == saved);  // one rank writes it all
  const DryRun input{.config = config,
                     .target = cpu_target(),
                     .spec = *plan.design->spec,
                     .memory = plan.memory().arenas,
                     .ops = plan.ops,
                     .checkpoint = {.bytes = saved, .rank_bytes = saved, .node_bytes = saved},
                     .rate = TokenRate{1000, "given"},
                     .sources = {{"x", 1.0, 2.5}}};
  const auto json = nlohmann::json::parse(dry_run_json(input));
  CHECK(json["total_parameters"] == 124'439'808);
  int64_t sum = 0;
  for (const auto name : memory_class_names) sum += json.value(std::string(name) + "_bytes", int64_t{0});
  CHECK(json["peak_bytes"] == sum);
  CHECK(json["model_flops_per_step"].get<int64_t>() == static_cast<int64_t>(plan.total().model_flops));
  CHECK(json["hardware_flops_per_step"].get<int64_t>() == static_cast<int64_t>(plan.total().executed_flops));
  CHECK(json["reference_flops_per_step"].get<int64_t>() ==
        static_cast<int64_t>(reference_flops_formula(config.model, 8)));
  CHECK(json["checkpoint_bytes"] == 12 * int64_t{124'439'808});
  RunConfig pure = config;
  pure.precision.pure = true;
  CHECK(checkpoint_bytes(*plan.design->spec, pure) == 10 * int64_t{124'439'808} + 2 * 25 * 2 * 768);
  CHECK(json["total_seconds"].get<double>() == Approx(8 * 1024 * 10 / 1000.0));
  CHECK(json["sources"][0]["epochs"] == 2.5);
  const std::string text = dry_run_text(input);
  CHECK(text.find("124,439,808") != std::string::npos);
  CHECK(text.find("2.50 epochs") != std::string::npos);
}

TEST_CASE("with gradients in bf16 and moments of 8 bits a parameter takes six bytes, and two scales for each 256") {
  const auto plan_with = [](const char* gradients) {
    return plan_rank(
        {preset_config("llama-7b", {"precision.compute=bf16-pure", gradients, "optimizer.type=adamw-8bit"}),
         cpu_target()});
  };
  const StepPlan plan = plan_with("precision.gradients=bf16"), wide = plan_with("precision.gradients=fp32");
  int64_t large = 0, norms = 0;
  for (const TensorSpec& tensor : plan.design->spec->tensors)
    (tensor.has_block_state() ? large : norms) += tensor.count();
  REQUIRE(large + norms == plan.design->spec->parameters());
  const auto state_bytes = [](const MemoryPlan& memory) {
    return memory[MemoryClass::weights] + memory[MemoryClass::gradients] + memory[MemoryClass::master] +
           memory[MemoryClass::optimizer];
  };
  // Norms also have master weights and moments in f32.
  CHECK(state_bytes(plan.memory().arenas) == 6 * large + 8 * large / 256 + (2 + 2 + 4 + 8) * norms);
  CHECK(state_bytes(wide.memory().arenas) - state_bytes(plan.memory().arenas) == 2 * (large + norms));
  // On a single rank, one unit after another has f32 gradients for a while.
  int64_t largest = 0;
  for (const UnitRange& unit : plan.design->layout.units) largest = std::max(largest, unit.elements);
  CHECK(wide.memory().arenas[MemoryClass::buckets] == 0);
  CHECK(plan.memory().arenas[MemoryClass::buckets] == 4 * largest);
}

TEST_CASE("planned traffic that is too large stops at the largest amount") {
  StepLog log;
  log.blocks = {{{.kind = Event::Kind::collective,
                  .channel = {0, 0},
                  .name = operation_name(Operation::all_reduce),
                  .sent_bytes = int64_t{1} << 61}}};
  const auto sent = [&](int times) {
    log.actions.assign(static_cast<size_t>(times), {.kind = ActionKind::reduce});
    return lane_traffic(log)[0][0][static_cast<size_t>(Operation::all_reduce)];
  };
  CHECK(sent(3).sent_bytes == 3 * (int64_t{1} << 61));
  CHECK(sent(5).sent_bytes == std::numeric_limits<int64_t>::max());
  CHECK(sent(5).calls == 5);
}
