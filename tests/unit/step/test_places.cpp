// Steps whose weights, updates or optimizer state are in other places than the ops' memory give the same bits.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "catch.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "step/training_step.h"
#include "step/update_resources.h"
#include "unit/temporary_folder.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::OneRank;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<std::byte> weights, state;
  MemoryPlan memory;
};

void append(const TrainingStep& step, std::vector<std::byte>& to, const void* from, int64_t bytes) {
  to.resize(to.size() + static_cast<size_t>(bytes));
  step.read_state(to.data() + to.size() - bytes, from, bytes);
}

// Returns the results of three steps and an evaluation, with choices that `change` has changed.
Outcome train(const RunConfig& config, void (*change)(StepChoices&)) {
  const TemporaryFolder folder;
  const auto backend = make_cpu_backend(1), update_backend = make_cpu_backend(1);
  OneRank rank(config);
  const PlanCase run{config, backend->target()};
  StepChoices choices = choose_step(run, 0);
  change(choices);
  const StepPlan plan = plan_step(run, choices);
  StepDesign design = *plan.design;
  design.config.memory.disk_path = folder.path().string();
  const UpdateResources resources(design, *backend, 0);
  UpdateDevice device = resources.device();
  if (choices.updates_on_host) device.backend = update_backend.get();
  TrainingStep step(plan.design, *backend, rank.groups, device);
  CHECK(step.taken() == plan.memory().arenas);
  step.initialize();
  RandomBatches batches(config);
  Outcome outcome{.losses = {}, .norms = {}, .weights = {}, .state = {}, .memory = plan.memory().arenas};
  for (int i = 0; i < 3; ++i) {
    const StepResult result = step.run(1e-2, batches);
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.grad_norm);
  }
  outcome.losses.push_back(step.evaluate(1, batches));
  for (const StateSlice& slice : step.state()) {
    append(step, outcome.weights, slice.weight, slice.count() * dtype_bytes(DType::f32));
    for (size_t column = 0; column < slice.columns.size(); ++column)
      append(step, outcome.state, slice.columns[column], slice.column_bytes(step.parameters().columns()[column]));
  }
  return outcome;
}

void require_same(const Outcome& a, const Outcome& b) {
  REQUIRE(a.losses == b.losses);
  REQUIRE(a.norms == b.norms);
  REQUIRE((a.weights == b.weights && a.state == b.state));
}

void keep_pieces(StepChoices& choices) { choices.weights = Residency::pieces; }
void update_on_host(StepChoices& choices) { choices.updates_on_host = true; }
void put_on_disk(StepChoices& choices) {
  choices.optimizer_state.resize(choices.units.size(), MemoryPlace::device);
  choices.optimizer_state[1] = MemoryPlace::disk;
}

}  // namespace

TEST_CASE("places of weights, updates and optimizer state change no bit") {
  for (const std::string precision : {"fp32", "bf16"}) {
    INFO(precision);
    const RunConfig config = small_config(Family::gpt2, {"precision.compute=" + precision, "optimizer.clip_norm=0.5"});
    const Outcome plain = train(config, [](StepChoices&) {});
    const int64_t moments = plain.memory[MemoryClass::optimizer];

    const Outcome pieces = train(config, keep_pieces);
    require_same(plain, pieces);
    CHECK(plain.memory[MemoryClass::gathered] == 0);
    CHECK(pieces.memory[MemoryClass::gathered] > 0);

    const Outcome on_host = train(config, update_on_host);
    require_same(plain, on_host);
    CHECK(on_host.memory[MemoryClass::optimizer] + on_host.memory[MemoryClass::master] == 0);
    CHECK(on_host.memory.on(MemoryPlace::host)[static_cast<size_t>(MemoryClass::optimizer)] == moments);

    const Outcome on_disk = train(config, put_on_disk);
    require_same(plain, on_disk);
    const int64_t moved = on_disk.memory.on(MemoryPlace::disk)[static_cast<size_t>(MemoryClass::optimizer)];
    CHECK(moved > 0);
    CHECK(on_disk.memory.total(MemoryPlace::disk) % StateLayout::range_multiple == 0);

    require_same(plain, train(config, [](StepChoices& choices) {
                   keep_pieces(choices);
                   update_on_host(choices);
                   put_on_disk(choices);
                 }));
  }
}
