// Places chosen by memory.offload_optimizer = "fit".
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
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
  const std::vector<std::string> small = {"model.hidden_size=256", "model.num_heads=4",        "model.num_layers=16",
                                          "model.vocab_size=257",  "model.sequence_length=64", "batch.micro=1",
                                          "memory.disk_path=/tmp", "memory.recompute=block"};
  more.insert(more.end(), small.begin(), small.end());
  return preset_config("gpt2-124m", more);
}

const RunConfig& fitted() {
  static const RunConfig config = config_with({"memory.offload_optimizer=fit"});
  return config;
}

RunConfig with_all_on_host() {
  RunConfig config = fitted();
  config.memory.offload_optimizer = StatePlace::host;
  return config;
}

int64_t bytes_of(const RunConfig& config, const Target& target, const StepChoices& choices) {
  return plan_step({config, target}, choices).memory().arenas.total();
}

int64_t host_bytes_of(const StepChoices& choices, const Target& target) {
  const auto bytes = plan_step({fitted(), target}, choices).memory().arenas.host_memory();
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

int64_t num_away(const StepChoices& choices, MemoryPlace place = MemoryPlace::disk) {
  return std::count(choices.optimizer_state.begin(), choices.optimizer_state.end(), place);
}

}  // namespace

TEST_CASE("fit leaves the state of as many units in memory as there is room for") {
  Target target = cpu_target();
  const StepChoices at_home = choose_step({fitted(), target}, 0);
  CHECK(num_away(at_home) == 0);
  CHECK(at_home.warning.empty());
  const int64_t most = bytes_of(fitted(), target, at_home);
  const RunConfig on_disk = config_with({"memory.offload_optimizer=disk", "memory.disk_units=3"});
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

TEST_CASE("memory has room for the state of as many units as keep the drives busy while passes run") {
  Target target = cpu_target();
  const auto units = [&](std::vector<std::string> more) {
    more.emplace_back("memory.offload_optimizer=disk");
    const RunConfig config = config_with(std::move(more));
    return choose_step({config, target}, 0).landed_units;
  };
  CHECK(units({"memory.disk_units=5"}) == 5);
  const std::string chosen = "memory.disk_units=0";
  CHECK(units({chosen, "batch.global=64"}) == 18);
  // Passes of one sequence are over before as much is read and written.
  const int64_t of_one =
      units({chosen, "batch.global=1", "memory.offload_parameters=disk", "memory.offload_gradients=disk"});
  CHECK(of_one > 3);
  CHECK(of_one < 18);
  const RunConfig config = config_with({chosen, "memory.offload_optimizer=disk", "batch.global=64"});
  StepChoices choices = choose_step({config, target}, 0);
  const int64_t most = bytes_of(config, target, choices);
  choices.landed_units = 3;
  const int64_t least = bytes_of(config, target, choices);
  for (const int64_t bytes : {(least + most) / 2, least, least - 1}) {
    target.memory_bytes = bytes;
    choices = choose_step({config, target}, 0);
    CHECK((choices.landed_units > 3) == (bytes > least));
    CHECK(choices.landed_units < 18);
    if (bytes >= least) CHECK(bytes_of(config, target, choices) <= bytes);
    ++choices.landed_units;
    CHECK(bytes_of(config, target, choices) > bytes);
  }
}

TEST_CASE("weights follow the state to the disk only if that is not enough") {
  Target target = cpu_target();
  const RunConfig config = config_with({"memory.offload_optimizer=fit", "memory.offload_parameters=fit"});
  CHECK(choose_step({config, target}, 0).weights == Residency::resident);
  const RunConfig on_disk = config_with({"memory.offload_optimizer=disk", "memory.disk_units=3"});
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

TEST_CASE("on a GPU fit takes the host first, and drives if the host has no room") {
  Target target = cpu_target();
  target.kind = Target::Kind::gpu;
  const RunConfig all_on_host = with_all_on_host();
  const int64_t most = bytes_of(fitted(), target, choose_step({fitted(), target}, 0));
  const int64_t least = bytes_of(all_on_host, target, choose_step({all_on_host, target}, 0));
  REQUIRE(least < most);
  target.memory_bytes = (least + most) / 2;
  const StepChoices some = choose_step({fitted(), target}, 0);
  const int64_t away = num_away(some, MemoryPlace::pinned_host);
  CHECK(away > 0);
  CHECK(away < 18);
  CHECK(num_away(some) == 0);
  CHECK(some.warning.find("lies on the host") != std::string::npos);
  CHECK(bytes_of(fitted(), target, some) <= target.memory_bytes);
  // Plans of fitted_places read ahead more micro-batches than that of the test.
  const int64_t on_host = host_bytes_of(some, target) + (int64_t{1} << 20);
  target.host_bytes = on_host;
  CHECK(num_away(choose_step({fitted(), target}, 0), MemoryPlace::pinned_host) == away);
  target.host_bytes = on_host * 3 / 4;
  const StepChoices on_drives = choose_step({fitted(), target}, 0);
  CHECK(num_away(on_drives, MemoryPlace::pinned_host) == 0);
  CHECK(num_away(on_drives) > 0);
  CHECK(host_bytes_of(on_drives, target) <= target.host_bytes);
  CHECK(on_drives.warning.find("lies on disk") != std::string::npos);
}

TEST_CASE("ranks of a node share the memory of its host") {
  Target target = cpu_target();
  target.kind = Target::Kind::gpu;
  RunConfig config = fitted();
  config.parallel.zero = 0;
  target.memory_bytes = bytes_of(config, target, choose_step({config, target}, 0)) - 1;
  const StepChoices alone = choose_step({config, target, 2}, 0);
  REQUIRE(num_away(alone, MemoryPlace::pinned_host) > 0);
  target.host_bytes = host_bytes_of(alone, target) * 3 / 2;
  CHECK(num_away(choose_step({config, target, 2}, 0)) > 0);
  target.ranks_per_node = 1;
  CHECK(num_away(choose_step({config, target, 2}, 0)) == 0);
}

TEST_CASE("on a GPU weights follow the state to the host") {
  Target target = cpu_target();
  target.kind = Target::Kind::gpu;
  const RunConfig config = config_with({"memory.offload_optimizer=fit", "memory.offload_parameters=fit"});
  const RunConfig all_on_host = with_all_on_host();
  target.memory_bytes = bytes_of(all_on_host, target, choose_step({all_on_host, target}, 0)) - 1;
  const StepChoices choices = choose_step({config, target}, 0);
  CHECK(choices.weights == Residency::away);
  CHECK(num_away(choices, MemoryPlace::pinned_host) == 18);
}

TEST_CASE("on a GPU weights follow the state to drives if the host has no room") {
  Target target = cpu_target();
  target.kind = Target::Kind::gpu;
  const RunConfig config = config_with({"memory.offload_optimizer=fit", "memory.offload_parameters=fit"});
  RunConfig away = config_with({"memory.offload_optimizer=disk", "memory.disk_units=3"});
  target.memory_bytes = bytes_of(away, target, choose_step({away, target}, 0)) - 1;
  away.memory.offload_parameters = StatePlace::disk;
  RunConfig all_on_host = with_all_on_host();
  all_on_host.memory.offload_parameters = StatePlace::host;
  // Plans of fitted_places read ahead more micro-batches than that of the test.
  target.host_bytes = host_bytes_of(choose_step({away, target}, 0), target) + (int64_t{1} << 20);
  REQUIRE(target.host_bytes < host_bytes_of(choose_step({all_on_host, target}, 0), target));
  const StepChoices choices = choose_step({config, target}, 0);
  CHECK(choices.weights == Residency::away);
  CHECK(num_away(choices) == 18);
  CHECK(choices.warning.find("and the weights of the last 18 of 18 units (embedding, layers and head) lies on disk") !=
        std::string::npos);
  target.host_bytes = 1;  // nothing fits
  CHECK(num_away(choose_step({config, target}, 0), MemoryPlace::pinned_host) == 18);
}

TEST_CASE("fit is refused on a GPU with an optimizer that reads gradients of whole tensors") {
  Target target = cpu_target();
  target.kind = Target::Kind::gpu;
  const RunConfig config = config_with({"memory.offload_optimizer=fit", "optimizer.type=lamb"});
  try {
    choose_step({config, target}, 0);
    FAIL("must be refused");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("\"fit\": cannot be combined on a GPU with optimizer.type = \"lamb\"") !=
          std::string::npos);
  }
}

}  // namespace gptrain::test_fitted_places
