// Schedules that run a block's backward in one action or in two halves give the same bits.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "catch.h"
#include "comm/world.h"
#include "fit/choose_step.h"
#include "model/spec/tensor_key.h"
#include "model_fixture.h"
#include "parallel/executor.h"
#include "step/training_step.h"

namespace test_schedules {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(int64_t bytes) { return Bytes(static_cast<size_t>(bytes) + memory_alignment); }

std::byte* aligned(Bytes& bytes) {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  return bytes.data() + (memory_alignment - address % memory_alignment) % memory_alignment;
}

// Returns a rank's gradients after forward and backward of all micro-batches, with each block's backward in one action
// or two.
std::vector<float> gradients_of(const RunConfig& config, RankGroups& groups, bool joint) {
  constexpr int64_t plenty = int64_t{8} << 20;
  const auto backend = make_cpu_backend(1);
  const auto stage = static_cast<int32_t>(groups.stage());
  const StepDesign design = design_step(config, backend->target(), groups,
                                        choose_step({config, backend->target(), groups.mesh().world_size()}, stage));
  const int64_t elements = design.layout.elements;
  Bytes weights = bytes_of(elements * 4);
  Bytes gradients = bytes_of(elements * 4);
  // Any fixed weights will do.
  auto* const first_weight = reinterpret_cast<float*>(aligned(weights));
  for (size_t i = 0; i < design.spec->tensors.size(); ++i) {
    const TensorSpec& tensor = design.spec->tensors[i];
    const int64_t count = std::min((*design.shards)[i].count(), tensor.count());
    backend->run(NormalValues{.key = tensor_key(tensor, 3, RandomUse::initial_weights),
                              .deviation = 0.02F,
                              .first = 0,
                              .row_step = 0,
                              .to = Matrix(first_weight + design.layout.segments[i].offset, DType::f32, 1, count)});
  }
  const ParameterStore store(*design.spec, *design.shards, design.layout, {},
                             {.weights = aligned(weights), .gradients = aligned(gradients)});
  const auto model = make_model(design, design.training_shape, *backend, groups);
  ScheduleOptions options = design.training->schedule.options;
  options.joint_backward = joint;
  Schedule schedule = training_schedule(options);
  std::erase_if(schedule.actions, [](const Action& action) {
    return action.kind == ActionKind::norm || action.kind == ActionKind::update;
  });
  set_lifetimes(schedule);
  const auto program = make_program(schedule, design.training->bytes, MemoryPlace::device);
  Bytes scratch = bytes_of(plenty);
  Bytes frames = bytes_of(plenty);
  backend->set_scratch(aligned(scratch), plenty);
  Workspace workspace(aligned(frames), plenty);
  StepState state;
  state.inverse_tokens = 1e-2F;
  UnitTickets gathers(design.spec->units.size(), Lane::done);
  ExecutorResources resources{
      .state = &state, .workspace = &workspace, .backend = backend.get(), .groups = &groups, .gathers = &gathers};
  std::vector<Bytes> arenas;
  for (size_t c = 0; c < num_memory_classes; ++c) {
    arenas.push_back(bytes_of(program->memory[static_cast<MemoryClass>(c)]));
    resources.arenas.at(MemoryPlace::device, static_cast<MemoryClass>(c)) = aligned(arenas.back());
  }
  Executor executor(*model, *program, store, resources, nullptr);
  RandomBatches batches(config);
  executor.play(batches, nullptr);
  const auto* const result = reinterpret_cast<const float*>(aligned(gradients));
  return {result, result + elements};
}

}  // namespace

TEST_CASE("a block's backward at once gives the bits of its two halves") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const int64_t tensor : {1, 2}) {
      for (const bool sequence : {false, true}) {
        if (sequence && tensor == 1) continue;
        INFO("tensor " << tensor << " sequence " << sequence);
        std::vector<std::string> overrides = {"model.num_heads=4",
                                              "model.hidden_size=40",
                                              "model.dropout=0.1",
                                              "batch.micro=2",
                                              "memory.recompute=every_nth",
                                              "memory.recompute_interval=2",
                                              "parallel.tensor=" + std::to_string(tensor)};
        if (sequence) overrides.push_back("parallel.sequence=true");
        const RunConfig config = small_config(family, overrides, tensor);
        std::vector<int> equal(static_cast<size_t>(tensor), 0);
        std::vector<int> not_zero(static_cast<size_t>(tensor), 0);
        run_local_ranks(static_cast<int>(tensor), [&](World& world) {
          RankGroups groups(config, world);
          const std::vector<float> joint = gradients_of(config, groups, true);
          const std::vector<float> of_units = gradients_of(config, groups, false);
          const auto rank = static_cast<size_t>(world.rank());
          equal[rank] = std::memcmp(joint.data(), of_units.data(), joint.size() * sizeof(float)) == 0 ? 1 : 0;
          not_zero[rank] = std::any_of(joint.begin(), joint.end(), [](float g) { return g != 0; }) ? 1 : 0;
        });
        for (size_t rank = 0; rank < equal.size(); ++rank) {
          CHECK(equal[rank] == 1);
          CHECK(not_zero[rank] == 1);
        }
      }
    }
  }
}

}  // namespace test_schedules
