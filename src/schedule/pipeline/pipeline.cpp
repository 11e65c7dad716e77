#include "schedule/pipeline/pipeline.h"

#include <array>
#include <fmt/format.h>

namespace gptrain::inline schedule {

std::string pass_text(const Pass& pass) {
  constexpr std::array<std::string_view, 4> names = {"forward", "backward", "backward_input", "backward_weight"};
  return fmt::format("{} of micro-batch {} through chunk {}", names[static_cast<size_t>(pass.kind)], pass.micro_batch,
                     pass.chunk);
}

std::shared_ptr<const PassLists> passes_of(const PipelineSchedule& schedule, const PipelineShape& shape) {
  struct Kept {
    std::string_view schedule;
    PipelineShape shape;
    std::shared_ptr<const PassLists> passes;
  };
  thread_local Kept kept;
  if (!kept.passes || kept.schedule != schedule.name || kept.shape != shape)
    kept = {schedule.name, shape, std::make_shared<const PassLists>(schedule.passes(shape))};
  return kept.passes;
}

}  // namespace gptrain::schedule
