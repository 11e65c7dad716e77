// How the units of a model are cut into chunks, and which stage of a pipeline runs which of them.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pipeline/schedules.h"

namespace gptrain {

struct Stages {
  const PipelineSchedule* schedule = &pipeline_schedules().front();
  PipelineShape shape;               // with the number of micro-batches that a program is for
  int32_t stage = 0;                 // this rank's
  std::vector<int32_t> first_units;  // by chunk, rising; the last number is that of all units

  // One stage that has all units.
  static Stages one(int32_t num_units, int32_t micro_batches);

  int32_t num_units() const { return first_units.back(); }
  int32_t first_unit(int32_t chunk) const { return first_units[static_cast<size_t>(chunk)]; }
  int32_t end_unit(int32_t chunk) const { return first_units[static_cast<size_t>(chunk) + 1]; }
  int32_t chunk_of(int32_t unit) const;
  int32_t stage_of_chunk(int32_t chunk) const { return schedule->stage_of(shape, chunk); }
  // Whether this stage runs the unit.
  bool runs(int32_t unit) const { return stage_of_chunk(chunk_of(unit)) == stage; }
  bool first() const { return runs(0); }
  bool last() const { return runs(num_units() - 1); }

  bool operator==(const Stages&) const = default;
};

// What stages send each other: a chunk's output to the chunk after it, or the gradient of its input to the one before.
struct StageMessage {
  bool gradient = false;
  int32_t chunk = 0;  // whose output, or whose input's gradient, it is
  int32_t micro_batch = 0;

  bool operator==(const StageMessage&) const = default;
};

// The way a message takes between neighbours in the ring of stages: to the next one or to the one before. Between two
// stages, which are each other's neighbours on both sides, outputs go to the next and gradients to the one before.
enum class Way : uint8_t { to_next, to_previous };
constexpr size_t num_ways = 2;

struct Route {
  int32_t from, to;  // stages; equal where nothing has to be sent
  Way way = Way::to_next;
};
// Stages that are no neighbours: a mistake of the schedule (std::logic_error).
Route route_of(const Stages& stages, const StageMessage& message);

// The message that a pass makes, if it makes one.
struct MadeMessage {
  bool made = false;
  StageMessage message;
};
MadeMessage message_of(const Stages& stages, const Pass& pass);

// What `stage` receives on each way, in the order in which its neighbour sends it. `passes`: of all stages.
std::vector<StageMessage> incoming(const Stages& stages, const std::vector<std::vector<Pass>>& passes, Way way);

}  // namespace gptrain
