// Optimizer state, weights and gradients on disk give the same bits as in memory, in the planned memory.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "parallel/away_state.h"
#include "same_outcomes.h"
#include "some_cases.h"
#include "touched.h"
#include "train/state_save.h"
#include "unit/temporary_folder.h"

namespace test_disk_state {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

Overrides joined(const std::vector<Overrides>& parts) {
  Overrides all;
  for (const Overrides& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const Overrides parameters = {"memory.offload_parameters=disk"};
const Overrides gradients = {"memory.offload_gradients=disk"};

void compare(const SmallLayout& layout, const Overrides& more, const Overrides& also_on_disk = {}) {
  const TemporaryFolder one, two;
  const Overrides on_disk = {"memory.offload_optimizer=disk",
                             "memory.disk_path=" + one.path().string() + ":" + two.path().string()};
  Wrapping wrapping;
  wrapping.before = wrapping.after = [](RankContext& rank) {
    CHECK(rank.step.taken() == rank.plan.memory().arenas);
    CHECK(rank.plan.memory().arenas.total(MemoryPlace::disk) > 0);
  };
  const RunConfig config = config_of(layout, joined({more, on_disk, also_on_disk}));
  // With other optimizers, part of the buffer of state ends within a page.
  if (config.optimizer.type == OptimizerKind::adamw) check_touched_after(wrapping, config, layout.world_size());
  constexpr int steps = 3;
  const Outcome expected = train_on_ranks(config_of(layout, more), layout.world_size(), steps);
  require_same(expected, train_on_ranks(config, layout.world_size(), steps, nullptr, 0, wrapping));
}

const std::vector<Overrides> optimizers = {{"optimizer.type=adamw", "optimizer.ema=0.9"},
                                           {"optimizer.type=adamw-8bit"},
                                           {"optimizer.type=lion"},
                                           {"optimizer.type=sgd", "optimizer.momentum=0.8"},
                                           {"optimizer.type=adafactor", "optimizer.ema=0.9"},
                                           {"optimizer.type=muon", "optimizer.ema=0.9"},
                                           {"optimizer.type=lamb"},
                                           {"optimizer.type=lars"}};

// Returns the outcome of a delayed run whose planned memory is that which it takes.
Outcome train_delayed(const SmallLayout& layout, const Overrides& more, int steps) {
  const TemporaryFolder folder;
  const Overrides delayed = {"memory.offload_optimizer=disk", "memory.disk_path=" + folder.path().string(),
                             "memory.offload_update=delayed"};
  Wrapping wrapping;
  wrapping.after = [](RankContext& rank) { CHECK(rank.step.taken() == rank.plan.memory().arenas); };
  const RunConfig config = config_of(layout, joined({more, delayed}));
  check_touched_after(wrapping, config, layout.world_size());
  return train_on_ranks(config, layout.world_size(), steps, nullptr, 0, wrapping);
}

// Returns the values of slices, one behind the other.
std::vector<std::byte> bytes_of(const std::vector<Slice>& slices) {
  std::vector<std::byte> all;
  const auto take = [&](const std::byte* data, int64_t bytes) { all.insert(all.end(), data, data + bytes); };
  for (const Slice& slice : slices) {
    const auto* const data = static_cast<const std::byte*>(slice.data);
    if (slice.memory == nullptr) {
      take(data, slice.bytes());
    } else {
      slice.memory->read(data, slice.bytes(), take);
    }
  }
  return all;
}

// Returns the bytes that copies of values in memory take.
int64_t copied_bytes(const std::vector<StateSlice>& pieces, const StateColumns& columns) {
  int64_t total = 0;
  const auto add = [&](const void* values, int64_t bytes) {
    if (values != nullptr && !is_away_address(values)) total += align_up(bytes);
  };
  for (const StateSlice& piece : pieces) {
    for (const float* const values : {piece.weight, piece.residual, piece.factor})
      add(values, piece.count() * dtype_bytes(DType::f32));
    add(piece.narrow_weight, piece.count() * dtype_bytes(DType::bf16));
    for (size_t i = 0; i < piece.columns.size(); ++i) add(piece.columns[i], piece.column_bytes(columns[i]));
  }
  return total;
}

// Compares a copy and a clone of the state with the state at their time, after more steps.
void check_clone(const SmallLayout& layout, const Overrides& more) {
  const TemporaryFolder one, two;
  const Overrides clones = {"memory.offload_optimizer=disk", "memory.disk_clones=always", "checkpoint.every_steps=1",
                            "memory.disk_path=" + one.path().string() + ":" + two.path().string()};
  const RunConfig config = config_of(layout, joined({more, clones}));
  std::mutex mutex;
  on_ranks(config, layout.world_size(), nullptr, {}, [&](RankContext& rank) {
    TrainingStep& step = rank.step;
    RandomBatches batches(config, 0, rank.groups);
    step.run(1e-3, batches);
    step.take_snapshot_memory();
    step.catch_up();
    const auto present = [&] {
      const auto memory = make_slice_memory(step);
      return bytes_of(slices_of(step, step.written_state(), StatePart::all, memory.get()));
    };
    const std::vector<std::byte> before = present();
    step.run(1e-3, batches);  // reads ahead
    step.catch_up();
    const auto clone = make_clone_memory(step);
    const std::vector<StateSlice> copy = step.copy_state();
    const std::vector<std::byte> saved = present();
    for (int i = 0; i < 2; ++i) step.run(1e-3, batches);
    const std::vector<std::byte> found = bytes_of(slices_of(step, copy, StatePart::all, clone.get()));
    const std::lock_guard lock(mutex);
    CHECK((saved != before));
    CHECK((found == saved));
    CHECK((present() != saved));
    CHECK(step.taken() == rank.plan.memory().arenas);
    const StepDesign& design = step.design();
    CHECK(design.cloned_bytes > 0);
    CHECK(copied_bytes(copy, step.parameters().columns()) ==
          design.snapshot_bytes - AwayClone::memory_bytes(step.parameters()));
  });
}

}  // namespace

// Run where tests/crash/test_disk_clones.py mounts a file system that clones.
TEST_CASE("a clone of state on disk stays as it was when steps go on", "[.clones]") {
  for (const Overrides& optimizer : optimizers) {
    for (const char* precision : {"fp32", "bf16", "bf16-pure"}) {
      INFO(optimizer.front() << " " << precision);
      const Overrides more = joined({optimizer, {std::string("precision.compute=") + precision}});
      check_clone({1, 2, {"parallel.zero=1"}}, more);
      check_clone({1, 2, {"parallel.zero=3"}}, joined({more, parameters}));
    }
  }
  check_clone({1, 1, {}}, joined({{"precision.compute=bf16"}, parameters, gradients}));
  check_clone({1, 1, {}}, joined({{"precision.compute=bf16-pure"}, parameters, gradients}));
  check_clone({1, 2, {"parallel.zero=1"}}, {"memory.offload_optimizer_share=0.5"});
  check_clone({1, 2, {"parallel.zero=2"}}, {R"(comm.compression={"kind": "int8", "min_elements": 1000})"});
  check_clone({.tensor = 1, .data = 1, .overrides = {"model.tied_head=true"}, .pipeline = 2}, {"memory.disk_units=50"});
  check_clone({1, 2, {"parallel.zero=1"}}, {"memory.offload_update=delayed"});
}

TEST_CASE("a step of a run with delayed updates computes with the weights before the last update") {
  const SmallLayout layout{1, 1, {}};
  const Overrides sgd = {"optimizer.type=sgd", "optimizer.momentum=0", "optimizer.weight_decay=0",
                         "optimizer.clip_norm=0"};
  const RunConfig config = config_of(layout, sgd);
  constexpr int64_t samples = 12;
  const Outcome delayed = train_delayed(layout, sgd, 4);
  const GlobalState start = train_on_ranks(config, 1, 0).state, first = train_delayed(layout, sgd, 1).state,
                    second = train_delayed(layout, sgd, 2).state;
  const auto next = [&](const GlobalState& from, int64_t step) {
    return train_on_ranks(config, 1, 1, &from, step * samples);
  };
  CHECK(delayed.losses[0] == next(start, 0).losses[0]);
  CHECK(delayed.losses[1] == next(start, 1).losses[0]);
  CHECK(delayed.losses[2] == next(first, 2).losses[0]);
  CHECK(delayed.losses[3] == next(second, 3).losses[0]);
  CHECK(delayed.losses[1] != next(first, 1).losses[0]);
  // The second update adds the gradients of the initial weights to those of the first.
  const GlobalState moved = next(start, 1).state;
  float most_moved = 0, most_apart = 0;
  for (const auto& [name, values] : second) {
    if (!name.starts_with("weight/")) continue;
    for (size_t i = 0; i < values.size(); ++i) {
      const float step = values[i] - first.at(name)[i], expected = moved.at(name)[i] - start.at(name)[i];
      most_moved = std::max(most_moved, std::abs(expected));
      most_apart = std::max(most_apart, std::abs(step - expected));
    }
  }
  CHECK(most_apart < 5e-7F);  // weights are rounded to 1e-7
  CHECK(most_moved > 1e-5F);
}

TEST_CASE("delayed updates have the same bits over ZeRO stages and pipelines", "[long]") {
  for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16"}) {
    INFO(precision);
    const Overrides more = {precision, "optimizer.ema=0.9", "optimizer.clip_norm=0.5"};
    const Outcome whole = train_delayed({1, 2, {"parallel.zero=0"}}, more, 3);
    require_same(whole, train_delayed({1, 2, {"parallel.zero=1"}}, more, 3));
    require_same(train_delayed({1, 1, {}}, more, 3),
                 train_delayed({.tensor = 1, .data = 1, .overrides = {}, .pipeline = 2}, more, 3));
    const Outcome pieces = train_delayed({2, 2, {"parallel.zero=2", "parallel.sequence=true"}}, more, 3);
    CHECK(pieces.torn == "");
    CHECK(pieces.losses != testing::train({2, 2, {"parallel.zero=2", "parallel.sequence=true"}}, more, 3).losses);
  }
}

TEST_CASE("optimizer state on disk has the bits of state in memory, over ZeRO stages and pipelines", "[long]") {
  const std::vector<SmallLayout> layouts = {
      {1, 1, {}},
      {1, 2, {"parallel.zero=0"}},
      {1, 2, {"parallel.zero=1"}},
      {2, 2, {"parallel.zero=2", "parallel.sequence=true"}},
      {1, 2, {"parallel.zero=3"}},
      {.tensor = 1, .data = 2, .overrides = {"parallel.zero=1", "model.tied_head=true"}, .pipeline = 2},
      {.tensor = 1, .data = 1, .overrides = {"model.tied_head=true"}, .pipeline = 2}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    INFO(i);
    compare(layouts[i], {i % 2 == 0 ? "precision.compute=bf16" : "precision.compute=fp32", "optimizer.clip_norm=0.5"});
  }
}

TEST_CASE("weights and gradients on disk have the bits of those in memory", "[long]") {
  const std::vector<SmallLayout> layouts = {
      {1, 1, {}},
      {1, 2, {"parallel.zero=3"}},
      {2, 1, {"parallel.sequence=true", "model.tied_head=true"}},
      {.tensor = 1, .data = 2, .overrides = {"parallel.zero=3", "model.tied_head=true"}, .pipeline = 2}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    INFO(i);
    const Overrides more = {i % 2 == 0 ? "precision.compute=bf16" : "precision.compute=fp32", "optimizer.clip_norm=0.5",
                            "memory.recompute=block"};
    compare(layouts[i], more, parameters);
    compare(layouts[i], more, joined({parameters, gradients}));
  }
  compare({1, 2, {"parallel.zero=2"}}, {"optimizer.type=adamw-8bit"}, gradients);
  compare({1, 2, {"parallel.zero=1"}}, {"precision.compute=bf16"}, {"memory.offload_optimizer_share=0.5"});
  compare({1, 1, {}}, {"precision.compute=bf16-pure"}, joined({parameters, gradients}));
  compare({1, 2, {"parallel.zero=2"}}, {"optimizer.type=lamb", "precision.compute=bf16-pure"}, gradients);
  compare({.tensor = 1, .data = 1, .overrides = {"model.tied_head=true"}, .pipeline = 2}, {}, gradients);
}

TEST_CASE("a step that is skipped leaves weights on disk as they are") {
  const TemporaryFolder folder;
  const Overrides more = {"precision.compute=bf16"};
  const Overrides on_disk = {"memory.offload_optimizer=disk", "memory.disk_path=" + folder.path().string()};
  require_same(train_past_a_skip(config_of({1, 1, {}}, more), 1),
               train_past_a_skip(config_of({1, 1, {}}, joined({more, on_disk, parameters, gradients})), 1));
}

TEST_CASE("gradients in bf16, and those that are sent in 8 bits, may lie on disk") {
  const Overrides narrow = {"precision.compute=bf16-pure", "precision.gradients=bf16", "optimizer.clip_norm=0.5"};
  compare({1, 1, {}}, narrow, joined({parameters, gradients}));
  compare({1, 2, {"parallel.zero=3"}}, narrow, joined({parameters, gradients}));
  compare({1, 2, {"parallel.zero=2"}}, narrow, gradients);
  compare({.tensor = 1, .data = 1, .overrides = {"model.tied_head=true"}, .pipeline = 2}, narrow, gradients);
  compare({1, 2, {"parallel.zero=2"}}, {R"(comm.compression={"kind": "int8", "min_elements": 1000})"}, gradients);
}

TEST_CASE("the state of each optimizer may lie on disk") {
  int units = 3;
  for (const Overrides& optimizer : optimizers) {
    INFO(optimizer.front());
    // disk_units rises from case to case; in the last ones it exceeds the model's units.
    compare({1, 2, {"parallel.zero=1"}}, joined({optimizer, {"precision.compute=bf16"}}),
            {"memory.disk_units=" + std::to_string(units++), "memory.disk_transfer_bytes=4096", "memory.disk_depth=3"});
  }
}

TEST_CASE("the state of each optimizer may lie on disk in every precision and ZeRO stage", "[long]") {
  size_t number = 0;
  for (const Overrides& optimizer : optimizers) {
    for (const char* precision : {"fp32", "bf16", "bf16-pure"}) {
      for (const char* zero : {"0", "1", "2", "3"}) {
        if (number++ % 5 != 0 && !all_cases()) continue;
        INFO(optimizer.front() << " " << precision << " " << zero);
        const SmallLayout layout{1, 2, {std::string("parallel.zero=") + zero}};
        const Overrides more = joined({optimizer, {std::string("precision.compute=") + precision}});
        compare(layout, more);
        const std::string& type = optimizer.front();
        const bool by_unit = type != "optimizer.type=adafactor" && type != "optimizer.type=muon";
        if (*zero == '3') compare(layout, more, parameters);
        if (*zero >= '2' && by_unit) compare(layout, more, gradients);
        if (*zero == '3' && by_unit) compare({1, 1, {}}, more, joined({parameters, gradients}));
      }
    }
  }
}

}  // namespace test_disk_state
