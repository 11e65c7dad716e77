// Division of a model's units into chunks, and of the chunks over the stages of a pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pipeline/schedules.h"

namespace gptrain::inline schedule {

struct Stages {
  const PipelineSchedule* schedule = &pipeline_schedules().front();
  PipelineShape shape;
  int32_t stage = 0;                 // stage of this rank
  std::vector<int32_t> first_units;  // first unit of each chunk, rising, then the number of units

  // Returns a pipeline of one stage and one chunk, which has all units.
  static Stages one(int32_t num_units, int32_t micro_batches);

  // Returns the number of units that passes run: embedding, blocks and head.
  int32_t num_layers() const { return first_units.back(); }
  int32_t first_unit(int32_t chunk) const { return first_units[chunk]; }
  int32_t end_unit(int32_t chunk) const { return first_units[static_cast<size_t>(chunk) + 1]; }
  // Returns the chunk that has the unit. REQUIRES: 0 <= unit < num_layers().
  int32_t chunk_of(int32_t unit) const;
  int32_t stage_of_chunk(int32_t chunk) const { return schedule->stage_of(shape, chunk); }
  bool runs(int32_t unit) const { return stage_of_chunk(chunk_of(unit)) == stage; }
  // Whether this stage runs the model's first unit, or its last.
  bool first() const { return runs(0); }
  bool last() const { return runs(num_layers() - 1); }

  bool operator==(const Stages&) const = default;
};

// A transfer between stages: a chunk's output, to the next chunk, or the gradient of its input, to the chunk before.
struct StageMessage {
  bool gradient = false;
  int32_t chunk = 0;  // the chunk that computes the output or the gradient
  int32_t micro_batch = 0;

  bool operator==(const StageMessage&) const = default;
};

// Direction of a message in the ring of stages. If there are only two stages, each is the other's neighbour on both
// sides: outputs then go to_next and gradients to_previous.
enum class Way : uint8_t { to_next, to_previous };
constexpr size_t num_ways = 2;

struct Route {
  int32_t from, to;  // stages; equal if both chunks are on one stage, so that nothing is sent
  Way way = Way::to_next;
};
// Returns the stages between which a message goes. REQUIRES: there is a next chunk, or one before (see message_of).
// THROWS std::logic_error if the two stages are not neighbours, which is a mistake of the pipeline schedule.
Route route_of(const Stages& stages, const StageMessage& message);

// The message that a pass makes. If it makes none, `made` is false and `message` has no meaning.
struct MadeMessage {
  bool made = false;
  StageMessage message;
};
// Returns the message of a pass for the next chunk (forward) or the chunk before (backward). Passes without such a
// chunk and backward_weight make none. Nothing is sent if both chunks are on one stage, as route_of tells.
MadeMessage message_of(const Stages& stages, const Pass& pass);

// Returns the messages that stages.stage receives from one direction, in the order in which its neighbour sends them.
// `passes`: the lists of all stages.
std::vector<StageMessage> incoming(const Stages& stages, const std::vector<std::vector<Pass>>& passes, Way way);

}  // namespace gptrain::schedule
