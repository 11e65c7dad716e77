// A model whose layers have FFNs of different widths: planned, trained on one rank and on many, saved and resumed.
#include <string>
#include <vector>

#include "catch.h"
#include "fit/choose_step.h"
#include "layouts.h"
#include "model/spec/layer_kinds.h"
#include "model_fixture.h"
#include "report/formulas.h"
#include "same_outcomes.h"
#include "touched.h"
#include "train/run_state.h"
#include "unit/temporary_folder.h"

namespace test_layer_kinds {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// The second of three layers has another FFN.
RunConfig mixed_config(const std::vector<std::string>& overrides, int64_t world_size) {
  std::vector<std::string> all = {"batch.global=4", "batch.micro=1"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  RunConfig config = small_config(Family::llama, all, world_size);
  config.model.ffn_pattern = {{52}, {36}, {52}};
  return config;
}

struct MixedLayout {
  std::vector<std::string> overrides;
  int64_t ranks;
};

const std::vector<MixedLayout> mixed_layouts = {
    {{"memory.recompute=block"}, 1},
    {{"parallel.tensor=2", "parallel.sequence=true", "batch.micro=2"}, 2},
    {{"parallel.pipeline=3", "parallel.pipeline_schedule=zero-bubble"}, 3},
    {{"parallel.zero=3", "memory.recompute=every_nth", "memory.recompute_interval=2"}, 2},
};

}  // namespace

TEST_CASE("layers with other FFNs are kinds of their own, with parameters and FLOPs of their own") {
  const RunConfig config = mixed_config({}, 1);
  const LayerKinds kinds = layer_kinds(config.model);
  CHECK(kinds.of_layers == std::vector<size_t>{0, 1, 0});
  CHECK(kinds.alike == std::vector<size_t>{0, 1});
  CHECK(kinds.by_parameters({2, 1}) == std::vector<int64_t>{2, 1});
  const ModelSpec spec = make_spec(config.model);
  CHECK(spec.tensors[spec.numbers().at("blocks.1.ffn.in.weight")].shape == std::vector<int64_t>{72, 40});
  CHECK(spec.tensors[spec.numbers().at("blocks.2.ffn.out.weight")].shape == std::vector<int64_t>{40, 52});
  const StepPlan plan = plan_rank({config, this_machine(1)});
  CHECK(to_string(plan.total().model_flops) == to_string(model_flops_formula(config.model, config.batch.global)));
  const std::vector<int32_t>& alike = plan.design->first_equal_unit;
  CHECK(alike == std::vector<int32_t>{0, 1, 2, 1, 4});
}

TEST_CASE("layers with other FFNs train alike in all layouts, and go on from what another layout saved") {
  const TemporaryFolder folder;
  Wrapping saving, loading;
  const auto in_folder = [&](RunConfig config) {
    config.run.out = folder.path().string();
    return config;
  };
  const RunConfig alone = in_folder(mixed_config({}, 1));
  const int64_t samples = 2 * alone.batch.global;
  saving.after = [&](RankContext& rank) {
    save_state(alone, rank.step, {.step = 2, .samples = samples, .updates = 2}, rank.groups, rank.world);
  };
  loading.before = [&](RankContext& rank) {
    load_state(resolve_checkpoint(folder.path()), rank.step, rank.groups, rank.world);
  };
  const Outcome uninterrupted = train_on_ranks(alone, 1, 3);
  const Outcome saved = train_on_ranks(alone, 1, 2, nullptr, 0, saving);
  const Outcome resumed = train_on_ranks(alone, 1, 1, nullptr, samples, loading);
  CHECK(resumed.losses.front() == uninterrupted.losses.back());
  require_bits_of(uninterrupted, resumed);
  for (const MixedLayout& layout : mixed_layouts) {
    const RunConfig config = in_folder(mixed_config(layout.overrides, layout.ranks));
    INFO(layout.overrides.front());
    require_bits_of(saved, train_on_ranks(config, layout.ranks, 0, nullptr, 0, loading));
    Wrapping checking = loading;
    check_touched_after(checking, config, layout.ranks);
    const Outcome outcome = train_on_ranks(config, layout.ranks, 1, nullptr, samples, checking);
    CHECK(outcome.torn == "");
    CHECK(outcome.losses.front() == Approx(uninterrupted.losses.back()).epsilon(1e-5));
    for (const auto& [name, values] : uninterrupted.state) {
      INFO(name);
      CHECK(relative_distance(outcome.state.at(name), values) < 2e-5);
    }
  }
}

}  // namespace test_layer_kinds
