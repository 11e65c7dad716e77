#include "schedule/stages.h"

#include <algorithm>
#include <fmt/format.h>
#include <stdexcept>

namespace gptrain::inline schedule {

Stages Stages::one(int32_t num_units, int32_t micro_batches) {
  Stages stages;
  stages.shape.micro_batches = micro_batches;
  stages.first_units = {0, num_units};
  return stages;
}

int32_t Stages::chunk_of(int32_t unit) const {
  const auto after = std::upper_bound(first_units.begin(), first_units.end(), unit);
  return static_cast<int32_t>(after - first_units.begin()) - 1;
}

Route route_of(const Stages& stages, const StageMessage& message) {
  const int32_t count = stages.shape.stages;
  Route route{stages.stage_of_chunk(message.chunk), stages.stage_of_chunk(message.chunk + (message.gradient ? -1 : 1))};
  if (route.from == route.to) return route;
  const bool next = (route.from + 1) % count == route.to;
  const bool previous = (route.to + 1) % count == route.from;
  if (!next && !previous) {
    throw std::logic_error(fmt::format("schedule {}: chunk {} of stage {} has its neighbour on stage {}",
                                       stages.schedule->name, message.chunk, route.from, route.to));
  }
  const bool both = next && previous;
  route.way = (both ? !message.gradient : next) ? Way::to_next : Way::to_previous;
  return route;
}

MadeMessage message_of(const Stages& stages, const Pass& pass) {
  const bool forward = pass.kind == PassKind::forward;
  const int32_t chunks = stages.shape.chunks();
  if (pass.kind == PassKind::backward_weight || pass.chunk == (forward ? chunks - 1 : 0)) return {};
  return {true, {!forward, pass.chunk, pass.micro_batch}};
}

std::vector<StageMessage> incoming(const Stages& stages, const std::vector<std::vector<Pass>>& passes, Way way) {
  const int32_t count = stages.shape.stages;
  std::vector<StageMessage> messages;
  if (count == 1) return messages;
  messages.reserve(static_cast<size_t>(stages.shape.micro_batches) *
                   static_cast<size_t>(stages.shape.chunks_per_stage));
  const int32_t sender = (stages.stage + (way == Way::to_next ? count - 1 : 1)) % count;
  for (const Pass& pass : passes[sender]) {
    const MadeMessage made = message_of(stages, pass);
    if (!made.made) continue;
    const Route route = route_of(stages, made.message);
    if (route.from != route.to && route.to == stages.stage && route.way == way) messages.push_back(made.message);
  }
  return messages;
}

}  // namespace gptrain::schedule
