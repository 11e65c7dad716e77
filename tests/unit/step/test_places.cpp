// Steps whose weights, updates or optimizer state are in other places than the ops' memory give the same bits.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "catch.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "step/training_step.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::OneRank;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

constexpr size_t disk = static_cast<size_t>(MemoryPlace::disk);

// Memory in a file without a name.
class FileStore final : public PlaceStore {
 public:
  void read(int64_t offset, std::byte* to, int64_t bytes) override {
    REQUIRE(std::fseek(file_.get(), offset, SEEK_SET) == 0);
    REQUIRE(std::fread(to, 1, static_cast<size_t>(bytes), file_.get()) == static_cast<size_t>(bytes));
    ++reads;
  }
  void write(int64_t offset, const std::byte* from, int64_t bytes) override {
    REQUIRE(std::fseek(file_.get(), offset, SEEK_SET) == 0);
    REQUIRE(std::fwrite(from, 1, static_cast<size_t>(bytes), file_.get()) == static_cast<size_t>(bytes));
  }

  int reads = 0;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_{std::tmpfile()};
};

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<std::byte> weights, state;
  MemoryPlan memory;
  int reads = 0;  // reads of the file
};

void append(std::vector<std::byte>& to, const void* from, int64_t bytes) {
  const auto* const data = static_cast<const std::byte*>(from);
  to.insert(to.end(), data, data + bytes);
}

// Returns the results of three steps and an evaluation, with choices that `change` has changed.
Outcome train(const RunConfig& config, void (*change)(StepChoices&)) {
  const auto backend = make_cpu_backend(1), update_backend = make_cpu_backend(1);
  OneRank rank(config);
  const PlanCase run{config, backend->target()};
  StepChoices choices = choose_step(run, 0);
  change(choices);
  const StepPlan plan = plan_step(run, choices);
  FileStore file;
  UpdatePlace place;
  if (choices.updates_on_host) place.backend = update_backend.get();
  place.stores[disk] = &file;
  TrainingStep step(plan.design, *backend, rank.groups, place);
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
  outcome.reads = file.reads;
  for (const StateSlice& slice : step.state())
    append(outcome.weights, slice.weight, slice.count() * dtype_bytes(DType::f32));
  const ParameterStore& parameters = step.parameters();
  const AwayState away(parameters, place.stores);
  for (int64_t unit = 0; unit < parameters.num_parameter_units(); ++unit) {
    away.fetch(unit);
    for (size_t column = 0; column < parameters.columns().size(); ++column)
      append(outcome.state, parameters.column(column, unit),
             parameters.update_range(unit).elements * dtype_bytes(DType::f32));
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
    CHECK(plain.reads == 0);
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
    CHECK(on_disk.reads == 3);  // one an update
    const int64_t moved = on_disk.memory.on(MemoryPlace::disk)[static_cast<size_t>(MemoryClass::optimizer)];
    CHECK(moved > 0);
    CHECK(on_disk.memory[MemoryClass::optimizer] == moments);  // without the unit, and with its landing area

    require_same(plain, train(config, [](StepChoices& choices) {
                   keep_pieces(choices);
                   update_on_host(choices);
                   put_on_disk(choices);
                 }));
  }
}
