// Optimizer state, weights and gradients on the host of a GPU, or on drives, give the bits of a run that keeps them on
// the device, in the planned memory.
#include <string>
#include <vector>

#include "catch.h"
#include "events.h"
#include "model_fixture.h"
#include "on_cuda.h"
#include "ops/op_event.h"
#include "same_outcomes.h"
#include "some_cases.h"
#include "touched.h"
#include "unit/temporary_folder.h"

namespace test_cuda_host_state {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

const Overrides optimizer = {"memory.offload_optimizer=host"};
const Overrides gradients = {"memory.offload_gradients=host"};
const Overrides parameters = {"memory.offload_parameters=host"};

Overrides joined(const std::vector<Overrides>& parts) {
  Overrides all = {"run.device=auto", "model.num_layers=2", "batch.global=8"};
  for (const Overrides& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

void check_places(RankContext& rank) {
  const MemoryPlan &planned = rank.plan.memory().arenas, taken = rank.step.taken();
  for (const MemoryPlace place : {MemoryPlace::device, MemoryPlace::pinned_host, MemoryPlace::host}) {
    for (size_t c = 0; c < num_memory_classes; ++c) {
      INFO(memory_class_names[c] << " in place " << static_cast<int>(place));
      // The test's ranks share one device, which a plan does not know.
      if (static_cast<MemoryClass>(c) != MemoryClass::communication) CHECK(taken.on(place)[c] == planned.on(place)[c]);
    }
  }
  const bool some_at_home = rank.step.design().config.memory.offload_optimizer_share < 1;
  CHECK((planned[MemoryClass::optimizer] > 0) == some_at_home);
  const bool any_away = rank.step.parameters().state_layout().any_away();
  CHECK((planned.on(MemoryPlace::pinned_host)[static_cast<size_t>(MemoryClass::optimizer)] > 0) == any_away);
  CHECK((any_away || some_at_home));
}

// Returns settings of places with drives instead of the host.
Overrides on_drives(const Overrides& places, const TemporaryFolder& folder) {
  Overrides result = {"memory.disk_path=" + folder.path().string()};
  for (const std::string& place : places) {
    const size_t host = place.find("=host");
    result.push_back(host == std::string::npos ? place : place.substr(0, host) + "=disk");
  }
  return result;
}

// Trains with and without values in other places. Clipping acts in these configs.
void compare(const SmallLayout& layout, const Overrides& more, const Overrides& places) {
  constexpr int steps = 2;
  Wrapping wrapping = on_cuda;
  wrapping.before = wrapping.after = check_places;
  const Overrides plain = joined({more, {"optimizer.clip_norm=0.5"}});
  const RunConfig config = config_of(layout, joined({plain, places}));
  if (config.optimizer.type == OptimizerKind::adamw) check_touched_after(wrapping, config, layout.world_size());
  const Outcome away = train_on_ranks(config, layout.world_size(), steps, nullptr, 0, wrapping);
  require_same(train_on_ranks(config_of(layout, plain), layout.world_size(), steps, nullptr, 0, on_cuda), away);
}

struct Case {
  SmallLayout layout;
  Overrides more, also_on_host;
};

const Overrides bf16 = {"precision.compute=bf16"}, fp32 = {"precision.compute=fp32"},
                pure = {"precision.compute=bf16-pure"};
const Overrides fp16 = {"precision.compute=fp16"};
const Overrides half = {"memory.offload_optimizer_share=0.5"}, adamw_8bit = {"optimizer.type=adamw-8bit"};

// The first cases have each ZeRO stage, each precision, each place, tensor ranks and a pipeline.
const std::vector<Case> cases = {
    {{1, 1, {}}, joined({bf16, {"optimizer.ema=0.9"}}), joined({gradients, parameters})},
    {{1, 2, {"parallel.zero=1"}}, fp32, half},
    {{2, 2, {"parallel.zero=2", "parallel.sequence=true"}}, joined({bf16, {"optimizer.type=lamb"}}), gradients},
    {{1, 2, {"parallel.zero=3"}}, joined({pure, adamw_8bit}), parameters},
    {{1, 1, {}}, fp16, half},
    {{.tensor = 1, .data = 1, .overrides = {"model.tied_head=true"}, .pipeline = 2}, bf16, gradients},
    {{1, 2, {"parallel.zero=0"}}, joined({bf16, {"optimizer.type=lion"}}), {}},
    {{1, 2, {"parallel.zero=3"}}, fp32, joined({gradients, parameters})},
    {{1, 2, {"parallel.zero=2"}}, joined({pure, {"optimizer.type=sgd", "optimizer.momentum=0.8"}}), gradients},
    {{1, 1, {}}, joined({pure, {"precision.gradients=bf16"}}), joined({gradients, parameters})},
    {{1, 2, {"parallel.zero=3"}}, joined({bf16, {"memory.recompute=block"}}), joined({gradients, parameters})},
    {{.tensor = 1, .data = 2, .overrides = {"parallel.zero=1", "model.tied_head=true"}, .pipeline = 2}, fp32, {}},
    {{1, 1, {}}, joined({bf16, {"memory.offload_activations=all"}}), {}},
    {{1, 2, {"parallel.zero=3"}}, pure, parameters},
    {{1, 2, {"parallel.zero=2"}}, fp16, joined({gradients})},
    {{1, 2, {"parallel.zero=3"}}, joined({bf16, adamw_8bit, {"optimizer.ema=0.9"}}), joined({gradients, parameters})},
    {{1, 2, {"parallel.zero=0"}}, joined({bf16, adamw_8bit}), half},
    {{.tensor = 1, .data = 1, .overrides = {"model.tied_head=true"}, .pipeline = 2},
     joined({pure, {"optimizer.type=lion"}}),
     half},
    {{1, 2, {"parallel.zero=1"}}, joined({fp32, {"optimizer.type=lars", "optimizer.ema=0.9"}}), {}},
    {{1, 2, {"parallel.zero=3"}}, joined({pure, {"optimizer.type=lamb"}}), joined({gradients, parameters})},
    {{.tensor = 1, .data = 1, .overrides = {"model.tied_head=true"}, .pipeline = 2},
     joined({fp16, {"optimizer.type=lamb", "optimizer.ema=0.9"}}),
     {}},
    {{2, 2, {"parallel.zero=2", "parallel.sequence=true"}}, bf16, gradients},
};
constexpr size_t fast_cases = 5;

}  // namespace

TEST_CASE("state on the host of a GPU has the bits of state on the device") {
  require_device();
  for (size_t i = 0; i < (some_cases() ? fast_cases : cases.size()); ++i) {
    INFO("case " << i);
    compare(cases[i].layout, cases[i].more, joined({optimizer, cases[i].also_on_host}));
  }
}

TEST_CASE("a step that is skipped leaves the weights of state on the host as they are") {
  require_device();
  const SmallLayout layout{1, 1, {}};
  for (const Overrides& precision : {fp16, bf16}) {
    if (some_cases() && precision == bf16) continue;
    const Outcome plain = train_past_a_skip(config_of(layout, joined({precision})), 1, on_cuda);
    for (const Overrides& also : {half, joined({gradients, parameters})})
      require_same(plain, train_past_a_skip(config_of(layout, joined({precision, optimizer, also})), 1, on_cuda));
  }
}

TEST_CASE("with delayed updates on the host a step computes with the weights before the last update") {
  require_device();
  const SmallLayout layout{1, 1, {}};
  const Overrides sgd = {"optimizer.type=sgd", "optimizer.momentum=0.5", "optimizer.clip_norm=0"};
  const Overrides delayed = {"memory.offload_optimizer=host", "memory.offload_update=delayed"};
  const RunConfig config = config_of(layout, joined({fp32, sgd}));
  const auto late = [&](int steps) {
    Wrapping wrapping = on_cuda;
    wrapping.after = check_places;
    return train_on_ranks(config_of(layout, joined({fp32, sgd, delayed})), 1, steps, nullptr, 0, wrapping);
  };
  const auto loss_after = [&](const GlobalState& from, int64_t step) {
    return train_on_ranks(config, 1, 1, &from, step * config.batch.global, on_cuda).losses[0];
  };
  const GlobalState start = train_on_ranks(config, 1, 0, nullptr, 0, on_cuda).state, first = late(1).state;
  const std::vector<double> losses = late(3).losses;
  CHECK(losses[0] == loss_after(start, 0));
  CHECK(losses[1] == loss_after(start, 1));
  CHECK(losses[2] == loss_after(first, 2));
  CHECK(losses[1] != loss_after(first, 1));
}

TEST_CASE("delayed updates on the host have the same bits over ZeRO stages and pipelines") {
  require_device();
  if (some_cases()) return;
  const auto late = [](const SmallLayout& layout, const Overrides& precision) {
    Wrapping wrapping = on_cuda;
    wrapping.after = check_places;
    const Overrides delayed = {"memory.offload_optimizer=host", "memory.offload_update=delayed",
                               "optimizer.clip_norm=0.5"};
    return train_on_ranks(config_of(layout, joined({precision, delayed})), layout.world_size(), 3, nullptr, 0,
                          wrapping);
  };
  for (const Overrides& precision : {fp32, bf16}) {
    require_same(late({1, 2, {"parallel.zero=0"}}, precision), late({1, 2, {"parallel.zero=1"}}, precision));
    require_same(late({1, 1, {}}, precision),
                 late({.tensor = 1, .data = 1, .overrides = {}, .pipeline = 2}, precision));
    CHECK(late({2, 2, {"parallel.zero=2", "parallel.sequence=true"}}, precision).torn == "");
  }
}

TEST_CASE("values on drives beside a GPU have the bits of values on the device") {
  require_device();
  for (size_t i = 0; i < cases.size(); ++i) {
    if (some_cases() && i != 7) continue;  // all values of two ranks
    INFO("case " << i);
    const TemporaryFolder folder;
    compare(cases[i].layout, cases[i].more, on_drives(joined({optimizer, cases[i].also_on_host}), folder));
  }
}

TEST_CASE("a step that is skipped leaves weights on drives beside a GPU as they are") {
  require_device();
  if (some_cases()) return;
  const SmallLayout layout{1, 1, {}};
  const TemporaryFolder folder;
  const Overrides places = on_drives(joined({optimizer, gradients, parameters}), folder);
  require_same(train_past_a_skip(config_of(layout, joined({fp16})), 1, on_cuda),
               train_past_a_skip(config_of(layout, joined({fp16, places})), 1, on_cuda));
}

TEST_CASE("a step with state on the host of a GPU, or on drives, has the events of its plan, copies too") {
  require_device();
  const TemporaryFolder folder;
  const auto is_on_drives = [](size_t run) { return run % 2 == 1; };
  for (const size_t run : {0, 1, 4, 7, 8, 5, 6, 10}) {
    const size_t i = run / 2;
    if (some_cases() && run != 0 && run != 1 && run != 8) continue;
    INFO("case " << i << (is_on_drives(run) ? " on drives" : ""));
    const auto& [layout, more, also_on_host] = cases[i];
    const Overrides places = joined({optimizer, also_on_host});
    const RunConfig config = config_of(layout, joined({more, is_on_drives(run) ? on_drives(places, folder) : places}));
    for (const RankEvents& rank : events_on_ranks(config, layout.world_size(), [] { return make_cuda_backend(0); })) {
      const EventWords ran = in_words(rank.profile.log);
      REQUIRE(ran.size() == rank.planned.size());
      for (size_t part = 0; part < ran.size(); ++part) REQUIRE(ran[part] == rank.planned[part]);
      double updates = 0, copies = 0;
      for_each_part(rank.profile, [&](const StepPart& part) {
        for (const Event& event : part.events) {
          if (event.queue != Event::Queue::update) continue;
          CHECK(event.end_seconds >= event.start_seconds);
          CHECK(event.start_seconds > 0);
          (event.kind == Event::Kind::copy ? copies : updates) += event.end_seconds - event.start_seconds;
        }
      });
      CHECK(updates > 0);
      CHECK(copies > 0);
    }
  }
}

}  // namespace test_cuda_host_state
