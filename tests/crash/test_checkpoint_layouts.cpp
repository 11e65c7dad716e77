// Checks that any layout loads the checkpoints of any other to the bit: weights, both moments and the average.
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/crc32c.h"
#include "catch.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "parallel/gradient_sums.h"
#include "some_cases.h"
#include "step/plan_step.h"
#include "train/run_state.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

namespace fs = std::filesystem;

struct Layout {
  int tensor, data, zero;
  bool sequence = false;
  std::string schedule = "";  // with the number of stages
  int stages = 1;
  int context = 1;
  bool is_ring = false;  // method of the context ranks: ring, else heads
  int expert = 0;        // ranks that share experts; 0: the model has none
  int expert_tensor = 1;

  int copies() const { return context * data; }
  int world_size() const { return tensor * copies() * stages; }
  std::string name() const {
    return fmt::format("tensor {} x context {} x data {} x {} stages {}, ZeRO {}{}, expert {}", tensor, context, data,
                       stages, schedule, zero, sequence ? ", sequence" : "", expert);
  }
};

const std::vector<Layout> layouts = {
    {.tensor = 1, .data = 1, .zero = 0},
    {.tensor = 1, .data = 2, .zero = 0},
    {.tensor = 1, .data = 3, .zero = 1},
    {.tensor = 1, .data = 5, .zero = 3},
    {.tensor = 2, .data = 1, .zero = 0, .sequence = true},
    {.tensor = 2, .data = 2, .zero = 2, .sequence = true},
    {.tensor = 3, .data = 2, .zero = 3},
    {.tensor = 6, .data = 1, .zero = 0, .sequence = true},
    {.tensor = 2, .data = 4, .zero = 1},
    {.tensor = 1, .data = 1, .zero = 0, .schedule = "gpipe", .stages = 3},
    {.tensor = 1, .data = 2, .zero = 3, .schedule = "interleaved", .stages = 2},
    {.tensor = 2, .data = 2, .zero = 1, .sequence = true, .schedule = "zero-bubble", .stages = 2},
    {.tensor = 1, .data = 3, .zero = 2, .schedule = "zero-bubble-v", .stages = 2},
    {.tensor = 1, .data = 2, .zero = 3, .context = 2},
    {.tensor = 1, .data = 1, .zero = 1, .context = 3, .is_ring = true}};

RunConfig config_of(Family family, const Layout& layout, const std::string& compute, const fs::path& out) {
  std::vector<std::string> overrides = {"model.num_heads=6",
                                        "model.hidden_size=48",
                                        "model.ffn_hidden_size=60",
                                        "model.sequence_length=12",
                                        "model.num_layers=4",
                                        "batch.micro=1",
                                        fmt::format("batch.global={}", layout.data),
                                        "precision.compute=" + compute,
                                        "precision.residual=fp32",
                                        "optimizer.ema=0.99",
                                        fmt::format("parallel.tensor={}", layout.tensor),
                                        fmt::format("parallel.context={}", layout.context),
                                        fmt::format("parallel.zero={}", layout.zero),
                                        "run.out=" + out.string()};
  if (family == Family::llama) overrides.push_back("model.num_kv_heads=2");  // 3 ranks cannot share them
  if (layout.sequence) overrides.push_back("parallel.sequence=true");
  if (layout.context > 1)
    overrides.push_back(layout.is_ring ? "parallel.context_method=ring" : "parallel.context_method=heads");
  if (layout.stages > 1) {
    overrides.push_back(fmt::format("parallel.pipeline={}", layout.stages));
    overrides.push_back("parallel.pipeline_schedule=" + layout.schedule);
  }
  if (layout.expert > 0) {
    overrides.insert(overrides.end(),
                     {"model.bias=false", R"(model.moe={"experts":6,"top_k":2,"ffn_hidden_size":64,"first":1})"});
  }
  if (layout.expert > 1) {
    overrides.push_back(fmt::format("parallel.expert={}", layout.expert));
    overrides.push_back(fmt::format("parallel.expert_tensor={}", layout.expert_tensor));
    overrides.push_back("parallel.expert_room=100");  // equal weights send all rows to the same experts
  }
  return small_config(family, overrides, layout.world_size());
}

// Content of element `index` of a tensor: random finite bits. Every layout must find the same.
float value_of(uint32_t tensor, int kind, int64_t index) {
  const auto words = philox({tensor, static_cast<uint32_t>(kind)},
                            {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0});
  const uint32_t bits = words[0] & ~(1U << 30);  // the highest bit of the exponent
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The part of it that a bf16 weight holds.
float as_bf16(float value) { return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000U); }

// Calls visit(value in memory, expected value) for each element of the rank's state.
template <typename Visit>
void for_each_value(const TrainingStep& step, const Visit& visit) {
  for (const StateSlice& piece : step.state()) {
    const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
    const std::vector<int64_t>& shape = tensor.shape;
    const uint32_t key = crc32c(tensor.name.data(), tensor.name.size());
    const bool matrix = shape.size() == 2;
    const int64_t width = matrix ? piece.shape[1] : 1;
    float* const data[] = {piece.weight, testing::column(piece, 0), testing::column(piece, 1),
                           testing::column(piece, 2)};
    for (int64_t i = 0; i < piece.count(); ++i) {
      const int64_t index =
          (piece.offset[0] + i / width) * (matrix ? shape[1] : 1) + (matrix ? piece.offset[1] + i % width : 0);
      for (int kind = 0; kind < 4; ++kind) {
        if (data[kind] != nullptr) {
          visit(data[kind][i], value_of(key, kind, index));
          continue;
        }
        float value = to_float(piece.narrow_weight[i]);
        visit(value, as_bf16(value_of(key, kind, index)));
        piece.narrow_weight[i] = to_bf16(value);
      }
    }
  }
}

// Runs body(step, groups, world) on every rank, as threads.
template <typename Body>
void on_ranks(const RunConfig& config, int world_size, const Body& body) {
  run_local_ranks(world_size, [&](World& world) {
    RankGroups groups(config, world);
    const auto backend = make_cpu_backend(1);
    const StepPlan plan = plan_rank({config, backend->target(), world_size}, world.rank());
    TrainingStep step(plan.design, *backend, groups);
    body(step, groups, world);
  });
}

void save_under(const RunConfig& config, const Layout& layout) {
  on_ranks(config, layout.world_size(), [&](TrainingStep& step, RankGroups& groups, World& world) {
    for_each_value(step, [](float& value, float wanted) { value = wanted; });
    save_state(config, step, {.step = 7, .samples = 70, .updates = 4, .skipped = 3, .skipped_in_a_row = 2}, groups,
               world);
  });
}

struct Loaded {
  std::atomic<int64_t> elements = 0;
  std::atomic<int64_t> different = 0;
  std::atomic<bool> same_progress = true;
  std::atomic<bool> goes_on = true;
};

void load_under(const RunConfig& config, const Layout& layout, const fs::path& checkpoint, Loaded& loaded) {
  on_ranks(config, layout.world_size(), [&](TrainingStep& step, RankGroups& groups, World& world) {
    for_each_value(step, [](float& value, float) { value = 1e30F; });
    const RunProgress progress = load_state(checkpoint, step, groups, world);
    const bool same = progress.step == 7 && progress.samples == 70 && progress.updates == 4 && progress.skipped == 3 &&
                      progress.skipped_in_a_row == 2;
    if (!same) loaded.same_progress = false;
    int64_t elements = 0;
    int64_t different = 0;
    for_each_value(step, [&](float& value, float wanted) {
      ++elements;
      different += std::memcmp(&value, &wanted, sizeof value) != 0 ? 1 : 0;
    });
    loaded.elements += elements;
    loaded.different += different;
    // Adam's bias corrections continue from the number of updates, not of steps.
    RandomBatches batches(config, 0, groups);
    for_each_value(step, [](float& value, float) { value = 0.01F; });
    if (step.run(1e-3, batches).updates != 5) loaded.goes_on = false;
  });
}

struct Folder {
  fs::path path = fs::temp_directory_path() / fmt::format("gptrain-layouts-{}", getpid());
  Folder() { fs::create_directory(path); }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

}  // namespace

namespace {

// Returns true if layout `load` of `count` is to load the checkpoint of layout `save`: always, or, if some_cases(), if
// they are the same, neighbours in the list, or half the list apart, so that each loads three checkpoints.
bool loads(size_t save, size_t load, size_t count) {
  const size_t distance = (load + count - save) % count;
  return !testing::some_cases() || distance <= 1 || distance == count / 2;
}

void check_layouts(Family family, const std::string& compute, const std::vector<Layout>& fitting) {
  const Folder folder;
  for (size_t save = 0; save < fitting.size(); ++save) {
    const Layout& saved = fitting[save];
    const fs::path out = folder.path / fmt::format("{}-{}-{}-{}-{}{}-{}", saved.tensor, saved.context, saved.data,
                                                   saved.zero, saved.stages, saved.schedule, saved.expert);
    save_under(config_of(family, saved, compute, out), saved);
    const std::vector<CheckpointInfo> found = list_checkpoints(out);
    REQUIRE(found.size() == 1);
    // Every tensor is covered, and no element is stored twice.
    REQUIRE_NOTHROW(verify_checkpoint(found[0].path));
    REQUIRE(read_manifest(found[0].path).world_size == saved.world_size());
    for (size_t load = 0; load < fitting.size(); ++load) {
      if (!loads(save, load, fitting.size())) continue;
      const Layout& layout = fitting[load];
      INFO("saved by " << saved.name() << ", loaded by " << layout.name());
      Loaded loaded;
      load_under(config_of(family, layout, compute, out), layout, found[0].path, loaded);
      REQUIRE(loaded.different == 0);
      REQUIRE(loaded.same_progress);
      REQUIRE(loaded.goes_on);
      const int64_t all = 3 * make_spec(config_of(family, layout, compute, out).model).parameters();
      REQUIRE(loaded.elements >= all);
    }
  }
}

}  // namespace

TEST_CASE("every layout loads the bits that every layout saved") {
  const Family family = GENERATE(Family::gpt2, Family::llama);
  std::vector<Layout> fitting = layouts;
  if (family == Family::llama) std::erase_if(fitting, [](const Layout& layout) { return layout.tensor == 3; });
  check_layouts(family, family == Family::gpt2 ? "fp32" : "bf16", fitting);
}

TEST_CASE("experts go from each group of ranks to each other") {
  check_layouts(Family::llama, "bf16",
                {{.tensor = 1, .data = 1, .zero = 0, .expert = 1},
                 {.tensor = 1, .data = 2, .zero = 1, .expert = 2},
                 {.tensor = 1, .data = 3, .zero = 3, .expert = 3},
                 {.tensor = 2, .data = 1, .zero = 0, .expert = 2},
                 {.tensor = 2, .data = 2, .zero = 2, .expert = 1},
                 {.tensor = 2, .data = 3, .zero = 3, .expert = 3, .expert_tensor = 2},
                 {.tensor = 1, .data = 2, .zero = 1, .schedule = "1f1b", .stages = 2, .expert = 2}});
}

TEST_CASE("so it is with weights of bf16 without masters") {
  check_layouts(Family::gpt2, "bf16-pure",
                {{.tensor = 1, .data = 1, .zero = 0},
                 {.tensor = 1, .data = 3, .zero = 1},
                 {.tensor = 1, .data = 5, .zero = 3},
                 {.tensor = 3, .data = 1, .zero = 0, .sequence = true},
                 {.tensor = 2, .data = 2, .zero = 2, .sequence = true},
                 {.tensor = 1, .data = 2, .zero = 2, .sequence = false, .schedule = "1f1b", .stages = 3}});
}

namespace {

// The error of an element on a data rank, or the sum over `data_ranks` ranks; whole numbers.
float error_of(int64_t tensor, int64_t index, int64_t data_rank) {
  return static_cast<float>((tensor * 7 + index * 3 + data_rank * 11) % 61);
}
float errors_of(int64_t tensor, int64_t index, int64_t data_ranks) {
  float sum = 0;
  for (int64_t rank = 0; rank < data_ranks; ++rank) sum += error_of(tensor, index, rank);
  return sum;
}

// Calls visit(error, tensor, index in the tensor) for each error that the rank keeps.
template <typename Visit>
void for_each_error(const TrainingStep& step, const Visit& visit) {
  for (const StateSlice& piece : step.residuals()) {
    const int64_t cols = step.spec().tensors[static_cast<size_t>(piece.tensor)].shape[1], width = piece.shape[1];
    for (int64_t i = 0; i < piece.count(); ++i)
      visit(piece.residual[i], piece.tensor, (piece.offset[0] + i / width) * cols + piece.offset[1] + i % width);
  }
}

RunConfig compressed_config(const Layout& layout, const fs::path& out) {
  RunConfig config = config_of(Family::gpt2, layout, "fp32", out);
  config.comm.compression = {.kind = GradientCodec::int8, .error = true, .min_elements = 1000};
  return config;
}

}  // namespace

TEST_CASE("errors of compressed gradients are each rank's own again, or an equal share of all ranks'") {
  const std::vector<Layout> all = {{.tensor = 1, .data = 2, .zero = 0},
                                   {.tensor = 2, .data = 2, .zero = 1},
                                   {.tensor = 1, .data = 4, .zero = 3},
                                   {.tensor = 1, .data = 1, .zero = 1, .context = 2},
                                   {.tensor = 1, .data = 2, .zero = 0, .schedule = "gpipe", .stages = 3}};
  const Folder folder;
  for (const Layout& saved : all) {
    const fs::path out = folder.path / fmt::format("{}-{}-{}", saved.tensor, saved.data, saved.stages);
    const RunConfig config = compressed_config(saved, out);
    on_ranks(config, saved.world_size(), [&](TrainingStep& step, RankGroups& groups, World& world) {
      step.initialize();
      for_each_error(step, [&](float& error, int64_t tensor, int64_t index) {
        error = error_of(tensor, index, groups.data_rank());
      });
      save_state(config, step, {.step = 7}, groups, world);
    });
    const fs::path checkpoint = list_checkpoints(out).front().path;
    REQUIRE_NOTHROW(verify_checkpoint(checkpoint));
    for (const Layout& layout : all) {
      INFO("saved by " << saved.name() << ", loaded by " << layout.name());
      std::atomic<int64_t> errors = 0, different = 0;
      const RunConfig asked = compressed_config(layout, out);
      on_ranks(asked, layout.world_size(), [&](TrainingStep& step, RankGroups& groups, World& world) {
        load_state(checkpoint, step, groups, world);
        for_each_error(step, [&](float error, int64_t tensor, int64_t index) {
          const TensorSpec& spec = step.spec().tensors[static_cast<size_t>(tensor)];
          const bool is_saved = codes_gradients(config.comm.compression, spec, saved.tensor);
          const float share = errors_of(tensor, index, saved.copies()) / static_cast<float>(layout.copies());
          const float own = saved.copies() == layout.copies() ? error_of(tensor, index, groups.data_rank()) : share;
          ++errors;
          different += std::abs(error - (is_saved ? own : 0)) > 1e-4F ? 1 : 0;
        });
      });
      REQUIRE(errors > 0);
      REQUIRE(different == 0);
    }
  }
}

TEST_CASE("factors of a low rank are the same again on any number of data ranks, and errors an equal share") {
  const Folder folder;
  const auto config_for = [&](const Layout& layout, int32_t rank) {
    RunConfig config = config_of(Family::gpt2, layout, "fp32", folder.path);
    config.comm.compression = {.kind = GradientCodec::powersgd, .rank = rank, .min_elements = 1000};
    return config;
  };
  const auto values_of = [](const StateSlice& piece) {
    return piece.factor != nullptr ? piece.factor : piece.residual;
  };
  const Layout saved{.tensor = 1, .data = 2, .zero = 1};
  const RunConfig config = config_for(saved, 3);
  on_ranks(config, saved.world_size(), [&](TrainingStep& step, RankGroups& groups, World& world) {
    step.initialize();
    for (const StateSlice& piece : step.residuals())
      for (int64_t i = 0; i < piece.count(); ++i)
        values_of(piece)[i] = error_of(piece.tensor, i, piece.factor != nullptr ? 9 : groups.data_rank());
    save_state(config, step, {.step = 7}, groups, world);
  });
  const fs::path checkpoint = list_checkpoints(folder.path).front().path;
  REQUIRE_NOTHROW(verify_checkpoint(checkpoint));
  for (const Layout& layout : {saved, Layout{.tensor = 1, .data = 4, .zero = 0}}) {
    for (const int32_t rank : {3, 2}) {
      INFO("loaded by " << layout.name() << " with rank " << rank);
      std::atomic<int64_t> factors = 0, different = 0;
      on_ranks(
          config_for(layout, rank), layout.world_size(), [&](TrainingStep& step, RankGroups& groups, World& world) {
            load_state(checkpoint, step, groups, world);
            for (const StateSlice& piece : step.residuals()) {
              for (int64_t i = 0; i < piece.count(); ++i) {
                const float share = errors_of(piece.tensor, i, saved.data) / static_cast<float>(layout.data);
                const float own = saved.data == layout.data ? error_of(piece.tensor, i, groups.data_rank()) : share;
                const float factor = rank == 3 ? error_of(piece.tensor, i, 9) : 0;
                factors += piece.factor != nullptr ? 1 : 0;
                different += std::abs(values_of(piece)[i] - (piece.factor != nullptr ? factor : own)) > 1e-4F ? 1 : 0;
              }
            }
          });
      REQUIRE(factors > 0);
      REQUIRE(different == 0);
    }
  }
}

TEST_CASE("a part that is missing or damaged is named") {
  const Folder folder;
  const Layout saved{.tensor = 2, .data = 2, .zero = 1};
  const RunConfig config = config_of(Family::gpt2, saved, "fp32", folder.path);
  save_under(config, saved);
  const fs::path checkpoint = list_checkpoints(folder.path).front().path;
  const fs::path part = checkpoint / "rank-00002.safetensors";
  const Layout layout{.tensor = 3, .data = 1, .zero = 0};
  const RunConfig other = config_of(Family::gpt2, layout, "fp32", folder.path);
  const auto refusal = [&] {
    try {
      Loaded loaded;
      load_under(other, layout, checkpoint, loaded);
    } catch (const Error& error) {
      REQUIRE(error.code() == ExitCode::checkpoint);
      return std::string(error.what());
    }
    return std::string("it was loaded");
  };
  fs::resize_file(part, fs::file_size(part) - 4);
  const std::string of_damaged = refusal();
  INFO(of_damaged);
  // Each rank checks its share of the files.
  REQUIRE(of_damaged.find("rank 2 (") == 0);
  REQUIRE(of_damaged.find(part.string()) != std::string::npos);
  REQUIRE(of_damaged.find("there is no older checkpoint in this run") != std::string::npos);
  fs::remove(part);
  const std::string of_missing = refusal();
  INFO(of_missing);
  REQUIRE(of_missing.find(part.string()) != std::string::npos);
}
