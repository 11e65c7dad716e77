// Places chosen by memory.offload_optimizer = "fit".
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "fit/choose_step.h"
#include "fit/recompute_plan.h"
#include "unit/preset_fixture.h"

namespace gptrain::test_fitted_places {
namespace {

using testing::cpu_target;
using testing::preset_config;

RunConfig config_with(std::vector<std::string> more) {
  const std::vector<std::string> small = {"model.hidden_size=64",  "model.num_heads=4",        "model.num_layers=16",
                                          "model.vocab_size=257",  "model.sequence_length=64", "batch.micro=1",
                                          "memory.disk_path=/tmp", "memory.recompute=block"};
  more.insert(more.end(), small.begin(), small.end());
  return preset_config("gpt2-124m", more);
}

const RunConfig& fitted() {
  static const RunConfig config = config_with({"memory.offload_optimizer=fit"});
  return config;
}

int64_t bytes_of(const RunConfig& config, const Target& target, const StepChoices& choices) {
  return plan_step({config, target}, choices).memory().arenas.total();
}

int64_t num_away(const StepChoices& choices) {
  return std::count(choices.optimizer_state.begin(), choices.optimizer_state.end(), MemoryPlace::disk);
}

}  // namespace

TEST_CASE("fit leaves the state of as many units in memory as there is room for") {
  Target target = cpu_target();
  const StepChoices at_home = choose_step({fitted(), target}, 0);
  CHECK(num_away(at_home) == 0);
  CHECK(at_home.warning.empty());
  const int64_t most = bytes_of(fitted(), target, at_home);
  const RunConfig on_disk = config_with({"memory.offload_optimizer=disk"});
  const int64_t least = bytes_of(on_disk, target, choose_step({on_disk, target}, 0));
  REQUIRE(least < most);
  target.memory_bytes = most;
  CHECK(num_away(choose_step({fitted(), target}, 0)) == 0);
  target.memory_bytes = (least + most) / 2;
  StepChoices some = choose_step({fitted(), target}, 0);
  const int64_t away = num_away(some);
  CHECK(away > 0);
  CHECK(away < 18);
  CHECK(some.warning.find("of the last " + std::to_string(away) + " of 18 units") != std::string::npos);
  CHECK(bytes_of(fitted(), target, some) <= target.memory_bytes);
  some.optimizer_state[static_cast<size_t>(18 - away)] = MemoryPlace::device;  // the first one on disk
  CHECK(bytes_of(fitted(), target, some) > target.memory_bytes);
  target.memory_bytes = least;
  CHECK(num_away(choose_step({fitted(), target}, 0)) == 18);
  CHECK(num_away(smallest_step({fitted(), target}, 0)) == 18);
}

TEST_CASE("weights follow the state to the disk only if that is not enough") {
  Target target = cpu_target();
  const RunConfig config = config_with({"memory.offload_optimizer=fit", "memory.offload_parameters=fit"});
  CHECK(choose_step({config, target}, 0).weights == Residency::resident);
  const RunConfig on_disk = config_with({"memory.offload_optimizer=disk"});
  target.memory_bytes = bytes_of(on_disk, target, choose_step({on_disk, target}, 0)) - 1;
  const StepChoices choices = choose_step({config, target}, 0);
  CHECK(choices.weights == Residency::away);
  CHECK(num_away(choices) == 18);
  CHECK(choices.warning.find("and the weights") != std::string::npos);
  CHECK(choose_step({fitted(), target}, 0).weights == Residency::resident);  // does not fit: refused later
}

TEST_CASE("a budget of activations gets what the chosen places leave") {
  Target target = cpu_target();
  const RunConfig config = config_with({"memory.offload_optimizer=fit"}), optimal = [&] {
    RunConfig result = config;
    result.memory.recompute = RecomputeKind::optimal;
    return result;
  }();
  const int64_t most = bytes_of(config, target, choose_step({config, target}, 0));
  target.memory_bytes = most - (int64_t{1} << 20);
  const StepChoices choices = choose_step({optimal, target}, 0);
  CHECK(num_away(choices) > 0);
  CHECK(activation_headroom({optimal, target}, 0) > 0);
  CHECK(bytes_of(optimal, target, choices) <= target.memory_bytes);
}

TEST_CASE("fit is refused in a plan for a GPU") {
  Target target = cpu_target();
  target.kind = Target::Kind::gpu;
  try {
    choose_step({fitted(), target}, 0);
    FAIL("must be refused");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("chooses for CPUs only") != std::string::npos);
  }
}

}  // namespace gptrain::test_fitted_places
