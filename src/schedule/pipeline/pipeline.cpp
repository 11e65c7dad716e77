#include "schedule/pipeline/pipeline.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "schedule/pipeline/generators.h"

namespace gptrain {

std::string pass_text(const Pass& pass) {
  constexpr std::array<std::string_view, 4> names = {"forward", "backward", "backward_input", "backward_weight"};
  return fmt::format("{} of micro-batch {} through chunk {}", names[static_cast<size_t>(pass.kind)], pass.micro_batch,
                     pass.chunk);
}

std::span<const PipelineSchedule> pipeline_schedules() {
  static const std::vector<PipelineSchedule> table = {one_f_one_b(), gpipe(),       interleaved(),
                                                      varuna(),      zero_bubble(), zero_bubble_v()};
  return table;
}

const PipelineSchedule* find_pipeline_schedule(std::string_view name) {
  const auto table = pipeline_schedules();
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const PipelineSchedule& s) { return s.name == name; });
  return found == table.end() ? nullptr : &*found;
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

}  // namespace gptrain
