#include "fit/fitted_places.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include "fit/fixed_choices.h"
#include "fit/micro_batches.h"

namespace gptrain::inline fit {
namespace {

// Returns the section with the state of the first `at_home` of `num_units` units in memory, that of others in `place`.
MemoryConfig with_units_at_home(MemoryConfig memory, int64_t at_home, int64_t num_units, StatePlace place) {
  memory.offload_optimizer = at_home < num_units ? place : StatePlace::none;
  memory.offload_parameters = StatePlace::none;
  // Half a unit more, so that rounding does not change the number.
  memory.offload_optimizer_share =
      at_home > 0 ? 1 - (static_cast<double>(at_home) + 0.5) / static_cast<double>(num_units) : 1;
  return memory;
}

int64_t sum_of(const MemoryPlan::ByClass& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

// Returns a rank's part of its node's host memory, of which all ranks there are given as much.
int64_t host_bytes_of_rank(const PlanCase& run) {
  const Target& target = run.target;
  if (target.host_bytes == 0) return std::numeric_limits<int64_t>::max();
  const bool is_one_node = target.ranks_per_node == 0 || target.ranks_per_node > run.world_size;
  return target.host_bytes / (is_one_node ? run.world_size : target.ranks_per_node);
}

// Memory that the largest ranks of a stage need.
struct Needs {
  int64_t on_device = 0, on_host = 0;
};

Needs needs_of(const PlanCase& run, int32_t stage, const StepChoices& choices) {
  const RunConfig config = with_enough_micro_batches(run.config);
  const Mesh mesh = make_mesh(config, run.world_size);
  const int64_t tensor = mesh.size(MeshAxis::tensor);
  Needs needs;
  // The first tensor rank has the biases and positions, the last the padding of the vocabulary.
  for (const int64_t tensor_rank : std::set<int64_t>{0, tensor / 2, tensor - 1}) {
    const StepPlan plan =
        plan_step({config, run.target, run.world_size}, choices, mesh.first_rank_of_stage(stage, tensor_rank));
    const MemoryPlan& arenas = plan.memory().arenas;
    needs.on_device = std::max(needs.on_device, arenas.total());
    needs.on_host = std::max(needs.on_host, sum_of(arenas.host_memory()));
  }
  return needs;
}

bool has_room(const PlanCase& run, const Needs& needs) {
  return needs.on_device <= run.target.bytes_of_rank() && needs.on_host <= host_bytes_of_rank(run);
}

// Chooses the places of a stage's state. References must outlive it.
class PlaceChooser {
 public:
  PlaceChooser(const PlanCase& run, int32_t stage, const UnitChoices& units)
      : run_(run), stage_(stage), units_(units) {}

  // Returns the section with the state of as few units in `place` as make the stage fit; empty if none does.
  std::optional<MemoryConfig> with_fewest_in(StatePlace place) const {
    const int64_t num_units = std::ssize(units_);
    const auto device_holds = [&](int64_t at_home) {
      return needs(with(at_home, place)).on_device <= run_.target.bytes_of_rank();
    };
    int64_t fitting = num_units;
    if (!device_holds(num_units)) {
      fitting = 0;
      // Memory for units on their way has room for the largest, so the embedding may take more away than at home.
      if (!device_holds(0) && !device_holds(++fitting)) return std::nullopt;
      for (int64_t too_many = num_units; too_many - fitting > 1;) {
        const int64_t middle = (fitting + too_many) / 2;
        (device_holds(middle) ? fitting : too_many) = middle;
      }
    }
    // The more units stay in the device's memory, the less the host needs.
    const MemoryConfig fewest = with(fitting, place);
    return fits(fewest) ? std::optional(fewest) : std::nullopt;
  }

  // Returns the section with the state of all units in `place`, and the weights, too, if their place is "fit".
  MemoryConfig with_all_in(StatePlace place) const {
    MemoryConfig all = with(0, place);
    if (run_.config.memory.offload_parameters == StatePlace::fit) all.offload_parameters = place;
    return all;
  }

  bool fits(const MemoryConfig& memory) const { return has_room(run_, needs(memory)); }

 private:
  const PlanCase& run_;
  const int32_t stage_;
  const UnitChoices& units_;

  Needs needs(const MemoryConfig& memory) const {
    RunConfig config = run_.config;
    config.memory = memory;
    return needs_of({config, run_.target, run_.world_size}, stage_, choices_with(memory, run_.target, units_));
  }

  MemoryConfig with(int64_t at_home, StatePlace place) const {
    return with_units_at_home(run_.config.memory, at_home, std::ssize(units_), place);
  }
};

}  // namespace

bool fits_memory(const PlanCase& run, int32_t stage, const StepChoices& choices) {
  return has_room(run, needs_of(run, stage, choices));
}

MemoryConfig fitted_places(const PlanCase& run, int32_t stage, const UnitChoices& units) {
  if (!run.config.memory.fits_places()) return run.config.memory;
  const PlaceChooser chooser(run, stage, units);
  if (run.target.kind == Target::Kind::cpu)
    return chooser.with_fewest_in(StatePlace::disk).value_or(chooser.with_all_in(StatePlace::disk));
  if (const auto some_on_host = chooser.with_fewest_in(StatePlace::host)) return *some_on_host;
  MemoryConfig on_host = chooser.with_all_in(StatePlace::host);
  if (chooser.fits(on_host)) return on_host;
  if (const auto some_on_disk = chooser.with_fewest_in(StatePlace::disk)) return *some_on_disk;
  MemoryConfig on_disk = chooser.with_all_in(StatePlace::disk);
  return chooser.fits(on_disk) ? on_disk : on_host;
}

}  // namespace gptrain::fit
