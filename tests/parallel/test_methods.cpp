// Memory-saving methods in combination, with every optimizer and precision, on layouts of all kinds: their memory and
// their results.
#include <filesystem>
#include <string>
#include <vector>

#include "catch.h"
#include "fit/choose_step.h"
#include "fit/micro_batches.h"
#include "fit/recompute_plan.h"
#include "methods.h"
#include "same_outcomes.h"
#include "some_cases.h"
#include "step/plan_step.h"
#include "touched.h"
#include "train/run_state.h"
#include "unit/named_target.h"
#include "unit/temporary_folder.h"

namespace test_methods {

using namespace gptrain;
using namespace gptrain::testing;

namespace fs = std::filesystem;

namespace {

// Returns true if 8-bit moments keep their blocks: rows of the test's matrices are not whole blocks, so a change of the
// tensor size encodes them anew.
bool keeps_blocks(const RunConfig& from, const RunConfig& to) {
  return from.optimizer.type != OptimizerKind::adamw_8bit || from.parallel.tensor == to.parallel.tensor;
}

}  // namespace

TEST_CASE("every pair of methods takes the bytes of its plan, has the bits of keeping all, and goes on with them",
          "[long]") {
  const Target target = this_machine(1);
  const std::vector<MethodCase> methods = method_cases();
  for (size_t number = 0; number < methods.size(); number += all_cases() ? 1 : 3) {
    const MethodCase& method = methods[number];
    INFO(method.name());
    const TemporaryFolder folder;
    const auto in_folder = [&](const MethodCase& which) {
      RunConfig config = which.config(target);
      config.run.out = folder.path().string();
      return config;
    };
    const RunConfig config = in_folder(method);
    const int64_t samples = 2 * config.batch.global;
    Wrapping saving, loading;
    saving.after = [&](RankContext& rank) {
      save_state(config, rank.step, {.step = 2, .samples = samples, .updates = 2}, rank.groups, rank.world);
    };
    check_touched_after(saving, config, method.world_size());
    loading.before = [&](RankContext& rank) {
      load_state(resolve_checkpoint(folder.path()), rank.step, rank.groups, rank.world);
    };
    const Outcome saves_all = train_on_ranks(method.config_that_keeps_all(), method.world_size(), 3);
    const Outcome saved = train_on_ranks(config, method.world_size(), 2, nullptr, 0, saving);
    const Outcome resumed = train_on_ranks(config, method.world_size(), 1, nullptr, samples, loading);
    CHECK(std::vector{saved.losses[0], saved.losses[1], resumed.losses[0]} == saves_all.losses);
    CHECK(std::vector{saved.norms[0], saved.norms[1], resumed.norms[0]} == saves_all.norms);
    require_bits_of(saves_all, resumed);

    const MethodCase other = method.on_next_layout();
    const RunConfig to = in_folder(other);
    INFO("loaded by: " << other.name());
    if (keeps_blocks(config, to))
      require_bits_of(saved, train_on_ranks(to, other.world_size(), 0, nullptr, 0, loading));
  }
}

TEST_CASE("beyond so many micro-batches a rank of one stage takes no more memory, whatever the methods", "[long]") {
  for (const Target& target : {this_machine(1), find_target("h100")}) {
    for (const MethodCase& method : method_cases()) {
      const RunConfig few = method.config(target);
      if (few.parallel.pipeline > 1) continue;
      const RunConfig enough = with_enough_micro_batches(with_micro_batches(few, 1000));
      const int64_t ranks = method.world_size();
      CHECK(enough.batch.accumulation < 100);
      CHECK(enough.batch.global == few.batch.global / few.batch.accumulation * enough.batch.accumulation);
      const StepChoices choices = choose_step({enough, target, ranks}, 0);
      const auto memory = [&](const RunConfig& config) {
        return plan_step({config, target, ranks}, choices, 0).memory().arenas;
      };
      INFO(target.name << ": " << method.name());
      CHECK(memory(enough) == memory(with_micro_batches(few, 900)));
    }
  }
}

}  // namespace test_methods
