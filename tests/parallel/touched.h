// The bytes of each arena that training touches, compared with the planned ones.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "catch.h"
#include "poisoning_backend.h"
#include "step/step_design.h"

namespace gptrain::testing {

// Returns the end of the gradients: nothing is written behind the last tensor of their last unit.
inline int64_t end_of_gradients(const TrainingStep& step, const DeviceMemory& arena) {
  int64_t end = 0;
  for (const StateSlice& piece : step.state()) {
    const auto* const last = piece.gradient != nullptr
                                 ? reinterpret_cast<const std::byte*>(piece.gradient + piece.count())
                                 : reinterpret_cast<const std::byte*>(piece.narrow_gradient + piece.count());
    end = std::max(end, last - arena.data());
  }
  return end;
}

// Returns true if workspaces are largest for rows of all tensor ranks: B and W are separate, or forward saves a tensor
// in another form than it computes. The rank's own rows, on the last rank the last ones, are not written.
inline bool peaks_in_gather(const RunConfig& config) {
  const auto& order = pipeline_order_names[static_cast<size_t>(config.parallel.pipeline_schedule)];
  const bool keeps_other_forms = config.memory.activation_bits < 16 || config.memory.saved_inputs < 16 ||
                                 config.memory.linear_projection.is_on() ||
                                 config.precision.weight_gradients != config.precision.compute;
  return config.parallel.sequence && (keeps_other_forms || find_pipeline_schedule(order)->splits_backward);
}
inline int64_t own_rows_bytes(const RunConfig& config) {
  const int64_t rows = config.batch.micro * config.model.sequence_length / config.parallel.tensor;
  return align_up(rows * config.model.hidden_size * dtype_bytes(config.precision.compute)) + memory_alignment;
}

// Checks the arenas on the backend's device; offloaded data are in memory of a queue.
inline void check_touched(RankContext& rank, const RunConfig& config, const PoisoningBackend& backend,
                          std::mutex& mutex) {
  const bool in_blocks = config.optimizer.type == OptimizerKind::adamw_8bit;
  const int64_t unit_padding =
      (in_blocks ? state_block : segment_multiple) * rank.groups.num_data_ranks() * dtype_bytes(DType::f32);
  const std::lock_guard lock(mutex);
  const StepMemory& memory = rank.plan.memory();
  std::vector<MemoryClass> classes;
  for (size_t c = 0; c < num_memory_classes; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    const bool elsewhere = memory_class == MemoryClass::offloaded && backend.target().kind == Target::Kind::gpu &&
                           memory.arenas.on(arena_place(memory_class, backend.target()))[c] > 0;
    if (!elsewhere) classes.push_back(memory_class);
  }
  REQUIRE(backend.arenas.size() >= classes.size());  // before them: memory in which ranks receive
  const auto arenas = std::span(backend.arenas).last(classes.size());
  for (size_t i = 0; i < classes.size(); ++i) {
    const MemoryClass c = classes[i];
    const auto index = static_cast<size_t>(c);
    INFO("rank " << rank.groups.rank() << " " << memory_class_names[index]);
    const MemoryPlace place = arena_place(c, backend.target());
    const int64_t planned = memory.arenas.on(place)[index] - memory.outside.on(place)[index];
    CHECK(arenas[i]->bytes() == planned);
    const int64_t touched = backend.touched_bytes(*arenas[i]);
    if (c == MemoryClass::gradients && !rank.step.design().sharding.gradients_away) {
      CHECK(touched >= end_of_gradients(rank.step, *arenas[i]));
    } else if ((c == MemoryClass::optimizer || c == MemoryClass::gradients) &&
               rank.step.design().sharding.gradients_away) {
      CHECK(touched > planned - unit_padding);  // has gradients, with the padding behind a unit's last tensor
    } else if (c == MemoryClass::buckets && rank.step.design().messages.num_residuals > 0) {
      CHECK(touched <= planned);  // messages of the pieces have the room of the longest
    } else if (c == MemoryClass::buckets) {
      CHECK(touched > planned - unit_padding);
    } else if (c == MemoryClass::workspace && peaks_in_gather(config)) {
      CHECK(touched > planned - own_rows_bytes(config));
    } else {
      CHECK(touched == planned);
    }
  }
}

// Checks every rank after the steps of train_on_ranks, before the wrapping's own hook.
inline void check_touched_after(Wrapping& wrapping, const RunConfig& config, int64_t world_size) {
  const auto mutex = std::make_shared<std::mutex>();
  wrapping.after = [=, &config, backends = poison_memory(wrapping, world_size),
                    then = wrapping.after](RankContext& rank) {
    rank.step.state();  // waits for gathers in progress
    check_touched(rank, config, *(*backends)[static_cast<size_t>(rank.groups.rank())], *mutex);
    if (then) then(rank);
  };
}

}  // namespace gptrain::testing
