// Memory of ranks that share a model: closed formulas, the plan, and the bytes that are really touched.
#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "catch.h"
#include "checkpoint/folder.h"
#include "comm/world.h"
#include "differences.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "parameter_formula.h"
#include "poisoning_backend.h"
#include "ranks.h"
#include "step/inference.h"
#include "touched.h"
#include "train/run_state.h"
#include "train/samples.h"
#include "unit/temporary_folder.h"
#include "wrappers.h"

namespace test_memory {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr MemoryClass parameter_classes[] = {MemoryClass::weights,   MemoryClass::gradients, MemoryClass::master,
                                             MemoryClass::optimizer, MemoryClass::gathered,  MemoryClass::buckets};

const std::vector<std::string> precisions[] = {
    {"precision.compute=fp32", "optimizer.type=lars"},
    {"precision.compute=bf16"},
    {"precision.reduce=bf16", "precision.compute=bf16", "optimizer.type=lamb"},
    {"precision.compute=bf16", "optimizer.type=muon"},
    {"precision.compute=bf16-pure", "precision.gradients=bf16"}};

struct Layout {
  int64_t tensor, data, zero;
  bool sequence;

  std::string name() const {
    return fmt::format("tensor {} data {} zero {} sequence {}", tensor, data, zero, sequence);
  }
};

std::vector<Layout> layouts() {
  std::vector<Layout> result;
  for (const int64_t tensor : {1, 2, 3}) {
    for (const int64_t data : {1, 2, 3}) {
      for (int64_t zero = 0; zero <= (data > 1 ? 3 : 0); ++zero) {
        for (const bool sequence : {false, true}) {
          if (!sequence || tensor > 1)
            result.push_back({.tensor = tensor, .data = data, .zero = zero, .sequence = sequence});
        }
      }
    }
  }
  return result;
}

RunConfig config_of(Family family, const Layout& layout, std::vector<std::string> overrides) {
  const std::vector<std::string> sizes = {"model.num_heads=6",
                                          "model.num_kv_heads=3",
                                          "model.hidden_size=48",
                                          "model.ffn_hidden_size=60",
                                          "model.sequence_length=18",
                                          "batch.global=12",
                                          "batch.micro=2",
                                          fmt::format("parallel.tensor={}", layout.tensor),
                                          fmt::format("parallel.zero={}", layout.zero)};
  overrides.insert(overrides.begin(), sizes.begin(), sizes.end());
  // Three key-value heads do not divide over two ranks; a single head is replicated.
  if (layout.tensor == 2) overrides.push_back("model.num_kv_heads=1");
  if (layout.sequence) overrides.push_back("parallel.sequence=true");
  return small_config(family, overrides, layout.tensor * layout.data);
}

}  // namespace

TEST_CASE("ranks take the bytes of the closed formulas for their share of the parameters") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const std::vector<std::string>& precision : precisions) {
      for (const Layout& layout : layouts()) {
        INFO(layout.name() << " " << precision.back());
        const RunConfig config = config_of(family, layout, precision);
        const MemoryPlan expected = parameter_formula(config, layout.data);
        const auto cpu = make_cpu_backend(1);
        for (int64_t rank = 0; rank < layout.tensor * layout.data; ++rank) {
          const MemoryPlan planned =
              plan_rank({config, cpu->target(), layout.tensor * layout.data}, rank).memory().arenas;
          for (const MemoryClass c : parameter_classes) {
            INFO("rank " << rank << " " << memory_class_names[static_cast<size_t>(c)]);
            CHECK(planned[c] == expected[c]);
          }
        }
      }
    }
  }
}

// With sequence parallelism all saved activations of a block are divided by the tensor size (arXiv 2205.05198, eq. 4).
// Without it, the block's input, its middle and the outputs of its norms are not.
TEST_CASE("a block's activations shrink with the tensor size as the published formula says") {
  const auto config_with = [](int64_t layers, const std::vector<std::string>& overrides) {
    return parse_config(fmt::format(R"({{"model": {{"preset": "gpt2-124m", "num_layers": {}}},
                                        "data": {{"train": [{{"path": "x"}}]}}, "batch": {{"global": 2, "micro": 2}},
                                        "precision": {{"compute": "bf16"}}, "optimizer": {{"lr": 1e-3}},
                                        "run": {{"steps": 1, "out": "x"}}}})",
                                    layers),
                        overrides, "test");
  };
  Target target;
  target.num_threads = 1;
  for (const int64_t t : {1, 2, 3, 4, 6}) {
    for (const bool sequence : {false, true}) {
      if (sequence && (t == 1 || t == 3 || t == 6)) continue;
      INFO("tensor " << t << " sequence " << sequence);
      std::vector<std::string> overrides = {fmt::format("parallel.tensor={}", t)};
      if (sequence) overrides.push_back("parallel.sequence=true");
      const RunConfig config = config_with(3, overrides);
      const auto activations = [&](const RunConfig& of) {
        return plan_rank({of, target, t}).memory().arenas[MemoryClass::activations];
      };
      const int64_t one_block = activations(config_with(4, overrides)) - activations(config);
      const ModelConfig& m = config.model;
      const int64_t rows = config.batch.micro * m.sequence_length;
      const int64_t s = sequence ? t : 1;
      const int64_t statistics = 4 * rows * (m.num_heads / t) + 4 * 4 * rows / s;  // log-sum-exp; two norms
      CHECK(one_block == 24 * rows * m.hidden_size / t + 8 * rows * m.hidden_size / s + statistics);
      // Codes for the block's input, its middle, its norms' outputs, and the outputs of attention and GELU, with a
      // scale per 128 elements.
      overrides.push_back("memory.saved_inputs=8");
      const int64_t coded_block = activations(config_with(4, overrides)) - activations(config_with(3, overrides));
      const auto codes = [](int64_t of_rows, int64_t cols) { return of_rows * (cols + 4 * ((cols + 127) / 128)); };
      const int64_t h = m.hidden_size;
      CHECK(coded_block ==
            14 * rows * h / t + codes(rows, h / t) + codes(rows, 4 * h / t) + 4 * codes(rows / s, h) + statistics);
    }
  }
}

TEST_CASE("the bytes that each rank touches are its plan's") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    int64_t bits = 0;
    for (std::vector<std::string> overrides : precisions) {
      if (family == Family::llama && overrides.front() == "precision.compute=fp32")
        overrides.push_back("precision.weight_gradients=bf16");
      const bool narrow_gradients = overrides.back() == "precision.gradients=bf16";
      overrides.push_back("model.dropout=0.1");
      overrides.push_back(family == Family::gpt2 ? fmt::format("memory.activation_bits={}", 2 + bits++ % 3)
                          : narrow_gradients     ? "optimizer.type=lion"
                                                 : "optimizer.ema=0.9");
      for (const Layout& layout : layouts()) {
        const int64_t world_size = layout.tensor * layout.data;
        if ((world_size == 1 && !narrow_gradients) || world_size > (narrow_gradients ? 4 : 6)) continue;
        INFO(layout.name() << " " << overrides.front());
        std::vector<std::string> all = overrides;
        // Needs whole sequences: two of them do not divide by three.
        const char* const kinds[] = {"gauss", "rademacher", "rows"};
        if ((layout.zero + layout.data) % 2 == 0) {
          all.push_back("memory.saved_inputs=8");
        } else if (!layout.sequence || layout.tensor == 2) {
          all.push_back(fmt::format(R"(memory.linear_projection={{"kind":"{}","share":0.4}})",
                                    kinds[(layout.tensor + layout.zero) % 3]));
        }
        const RunConfig config = config_of(family, layout, all);
        Wrapping wrapping;
        check_touched_after(wrapping, config, world_size);
        train_on_ranks(config, world_size, 2, nullptr, 0, wrapping);
      }
    }
  }
}

namespace {

std::vector<std::byte> bytes_of(const TrainingStep& step, const std::vector<StateSlice>& state) {
  std::vector<std::byte> all;
  const auto add = [&](const void* data, int64_t bytes) {
    const auto* const first = static_cast<const std::byte*>(data);
    all.insert(all.end(), first, first + bytes);
  };
  for (const StateSlice& piece : state) {
    if (piece.weight != nullptr) add(piece.weight, piece.count() * dtype_bytes(DType::f32));
    if (piece.narrow_weight != nullptr) add(piece.narrow_weight, piece.count() * dtype_bytes(DType::bf16));
    for (size_t i = 0; i < piece.columns.size(); ++i) {
      if (piece.columns[i] == nullptr) continue;
      add(piece.columns[i], piece.column_bytes(step.parameters().columns()[i]));
    }
  }
  return all;
}

void check_snapshot(const RunConfig& config, int64_t world_size) {
  std::mutex mutex;
  on_poisoned_ranks(
      config, world_size, [&](RankContext& rank, RandomBatches& batches, const PoisoningBackend& backend) {
        rank.step.run(1e-3, batches);
        rank.step.take_snapshot_memory();
        const std::vector<StateSlice> copy = rank.step.copy_state();
        const std::vector<std::byte> copied = bytes_of(rank.step, rank.step.state(true));
        rank.step.run(1e-3, batches);
        rank.step.state();  // waits for gathers in progress
        const std::lock_guard lock(mutex);
        const DeviceMemory& memory = *backend.arenas.back();
        const int64_t planned = rank.plan.memory().arenas[MemoryClass::snapshot];
        CHECK(planned > 0);
        CHECK(memory.bytes() == planned);
        CHECK(backend.touched_bytes(memory) == planned);
        CHECK(rank.step.taken()[MemoryClass::snapshot] == planned);
        CHECK(first_difference(bytes_of(rank.step, copy), copied) == "");
        for (const StateSlice& piece : copy)  // gradients are not copied, and the step's own are overwritten
          REQUIRE((piece.gradient == nullptr && piece.narrow_gradient == nullptr));
        CHECK((bytes_of(rank.step, rank.step.state(true)) != copied));
      });
}

}  // namespace

TEST_CASE("the copy of a rank's state takes what is planned, fills it, and stays when the state changes") {
  std::vector<std::vector<std::string>> kinds(std::begin(precisions), std::end(precisions));
  kinds.push_back({"optimizer.type=adamw-8bit", "model.hidden_size=96"});
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (std::vector<std::string> overrides : kinds) {
      overrides.push_back("checkpoint.every_steps=2");
      for (const Layout& layout : layouts()) {
        const int64_t world_size = layout.tensor * layout.data;
        if (world_size > 4) continue;
        INFO(layout.name() << " " << overrides.front());
        check_snapshot(config_of(family, layout, overrides), world_size);
      }
    }
  }
}

namespace {

struct Pipeline {
  std::string schedule;
  int64_t stages, chunks;
};
const std::vector<Pipeline> pipelines = {{"gpipe", 2, 1},       {"1f1b", 3, 1},         {"interleaved", 2, 2},
                                         {"varuna", 2, 1},      {"zero-bubble", 3, 1},  {"zero-bubble-v", 2, 2},
                                         {"interleaved", 3, 2}, {"zero-bubble-v", 3, 2}};

std::vector<std::string> in_stages(const Pipeline& pipeline, std::vector<std::string> overrides) {
  overrides.push_back(fmt::format("parallel.pipeline={}", pipeline.stages));
  overrides.push_back("parallel.pipeline_schedule=" + pipeline.schedule);
  if (pipeline.chunks > 1) overrides.push_back(fmt::format("parallel.virtual_stages={}", pipeline.chunks));
  return overrides;
}

// Returns the most bytes of an arena's buffers alive in one action, and the most buffers of one kind and unit.
int64_t most_alive(const Program& program, MemoryClass c) {
  std::vector<int64_t> change(program.schedule.actions.size() + 1, 0);
  for (const Buffer& buffer : program.schedule.buffers) {
    if (memory_class(buffer.kind) != c || buffer.first < 0) continue;  // not named by any action
    const int64_t bytes =
        program.bytes[static_cast<size_t>(buffer.kind)][static_cast<size_t>(std::max(buffer.unit, 0))];
    change[static_cast<size_t>(buffer.first)] += bytes;
    change[static_cast<size_t>(buffer.last) + 1] -= bytes;
  }
  int64_t now = 0, most = 0;
  for (const int64_t step : change) most = std::max(most, now += step);
  return most;
}
int64_t most_alive(const Schedule& schedule, BufferKind kind, int32_t unit) {
  std::vector<int64_t> change(schedule.actions.size() + 1, 0);
  for (const Buffer& buffer : schedule.buffers) {
    if (buffer.kind != kind || buffer.unit != unit) continue;
    ++change[static_cast<size_t>(buffer.first)];
    --change[static_cast<size_t>(buffer.last) + 1];
  }
  int64_t now = 0, most = 0;
  for (const int64_t step : change) most = std::max(most, now += step);
  return most;
}

}  // namespace

TEST_CASE("1F1B keeps what min(stages - i, micro-batches) micro-batches save on stage i, to the byte") {
  const auto cpu = make_cpu_backend(1);
  for (const int64_t stages : {2, 3, 4}) {
    for (const int64_t micro_batches : {1, 2, 3, 5, 8}) {
      const RunConfig config = small_config(
          Family::llama,
          in_stages({"1f1b", stages, 1},
                    {"model.num_layers=12", "batch.micro=1", fmt::format("batch.global={}", micro_batches)}),
          stages);
      for (int64_t stage = 0; stage < stages; ++stage) {
        INFO(stages << " stages, " << micro_batches << " micro-batches, stage " << stage);
        const StepPlan plan = plan_rank({config, cpu->target(), stages}, stage);
        const Program& program = *plan.design->training;
        const Stages& own = program.schedule.options.stages;
        const int64_t in_flight = std::min(stages - stage, micro_batches);
        for (int32_t unit = std::max(own.first_unit(own.stage), 1); unit < own.end_unit(own.stage); ++unit) {
          if (unit + 1 == own.num_layers()) continue;
          CHECK(most_alive(program.schedule, BufferKind::saved_for_weight, unit) == in_flight);
          CHECK(most_alive(program.schedule, BufferKind::saved_for_input, unit) == in_flight);
        }
      }
    }
  }
}

TEST_CASE("arenas of stages are hardly larger than what is alive in them at once") {
  const auto cpu = make_cpu_backend(1);
  std::map<std::string, double> largest;
  for (const Pipeline& pipeline : pipelines) {
    for (const int zero : {0, 2, 3}) {
      for (const int64_t micro_batches : {1, 2, 5, 8}) {
        const int64_t ranks = pipeline.stages * 2;
        const RunConfig config = small_config(
            Family::gpt2,
            in_stages(pipeline, {"model.num_layers=6", "batch.micro=1", fmt::format("parallel.zero={}", zero),
                                 fmt::format("batch.global={}", 2 * micro_batches)}),
            ranks);
        for (int64_t rank = 0; rank < ranks; rank += 2) {
          const StepPlan plan = plan_rank({config, cpu->target(), ranks}, rank);
          const Program& program = *plan.design->training;
          for (const MemoryClass c : {MemoryClass::activations, MemoryClass::gathered, MemoryClass::buckets}) {
            const int64_t alive = most_alive(program, c);
            INFO(pipeline.schedule << " " << pipeline.stages << " stages, rank " << rank << " zero " << zero << ", "
                                   << micro_batches << " micro-batches, " << memory_class_names[static_cast<size_t>(c)]
                                   << ": " << program.memory[c] << " of " << alive);
            CHECK(program.memory[c] >= alive);
            const double ratio = alive > 0 ? static_cast<double>(program.memory[c]) / static_cast<double>(alive) : 1;
            const bool splits = find_pipeline_schedule(pipeline.schedule)->splits_backward;
            CHECK(ratio <= (splits ? 1.3 : 1.05));
            largest[pipeline.schedule] = std::max(largest[pipeline.schedule], ratio);
          }
        }
      }
    }
  }
  for (const auto& [schedule, ratio] : largest)
    fmt::print("{}: arenas are at most {:.3f} times what is alive in them\n", schedule, ratio);
}

namespace {

// Saves a checkpoint of the initial weights, which are the same for every layout.
std::filesystem::path save_first_weights(const RunConfig& config, const std::filesystem::path& out) {
  OneRank rank(config);
  const auto cpu = make_cpu_backend(1);
  rank.groups.use_memory_of(*cpu, false, config.comm.timeout_seconds);
  TrainingStep step(plan_rank({config, cpu->target()}).design, *cpu, rank.groups);
  step.initialize();
  save_weights(config, step, {}, rank.groups, *rank.world, out, std::nullopt);
  return checkpoints_folder(out) / step_folder_name(0);
}

// Generates a text of the most tokens planned for, on memory that shows which bytes were written.
void check_samples(const RunConfig& config, int64_t world_size, const std::filesystem::path& checkpoint) {
  std::mutex mutex;
  run_local_ranks(static_cast<int>(world_size), [&](World& world) {
    RankGroups groups(config, world);
    const auto cpu = make_cpu_backend(1);
    const StepPlan plan = plan_rank({config, cpu->target(), world_size}, world.rank());
    const int64_t planned = plan.memory().arenas[MemoryClass::samples];
    if (groups.data_rank() > 0) {
      const std::lock_guard lock(mutex);
      CHECK(planned == 0);
      return;
    }
    PoisoningBackend backend(*cpu);
    Inference inference(config, checkpoint, WhichWeights::trained, groups, backend);
    inference.reserve(most_tokens_of_sample(config.run));
    std::vector<int32_t> sequence(1, 5);
    for (; std::ssize(sequence) <= most_tokens_of_sample(config.run); sequence.push_back(7))
      inference.next_logits(sequence, 0);
    const std::lock_guard lock(mutex);
    // Weights, activations, data, workspace and scratch. Weights may end with padding rows of the vocabulary, and
    // scratch is an upper bound.
    REQUIRE(backend.arenas.size() == 5);
    int64_t taken = 0;
    for (size_t i = 0; i < backend.arenas.size(); ++i) {
      INFO("rank " << world.rank() << " arena " << i);
      taken += backend.arenas[i]->bytes();
      if (i > 0 && i + 1 < backend.arenas.size())
        CHECK(backend.touched_bytes(*backend.arenas[i]) == backend.arenas[i]->bytes());
    }
    CHECK(planned > 0);
    CHECK(taken == planned);
  });
}

}  // namespace

TEST_CASE("texts during a run take the memory that is planned for them") {
  const TemporaryFolder folder;
  const auto check = [&](Family family, int64_t tensor, int64_t stages, const std::string& length) {
    const int64_t data = tensor * stages < 4 ? 2 : 1;
    const Layout layout{.tensor = tensor, .data = data * stages, .zero = data > 1 ? 3 : 0, .sequence = tensor > 1};
    const RunConfig config = config_of(
        family, layout,
        {length, fmt::format("parallel.pipeline={}", stages), "data.mask_documents=true", "precision.compute=bf16",
         "run.sample_every_steps=2", "run.sample_prompt=some words", "run.sample_tokens=70"});
    const std::string heads = fmt::format("model.num_kv_heads={}", config.model.num_kv_heads);
    INFO((family == Family::gpt2 ? "gpt2 " : "llama ") << layout.name() << ", " << stages << " stages, " << length);
    const auto checkpoint = save_first_weights(
        config_of(family, {.tensor = 1, .data = 1, .zero = 0, .sequence = false}, {length, heads}), folder.path());
    check_samples(config, layout.tensor * layout.data, checkpoint);
    std::filesystem::remove_all(checkpoint);
  };
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const int64_t tensor : {1, 2}) {
      for (const int64_t stages : {1, 2}) {
        for (const char* length : {"model.sequence_length=18", "model.sequence_length=150"})
          check(family, tensor, stages, length);
      }
    }
  }
}

}  // namespace test_memory
