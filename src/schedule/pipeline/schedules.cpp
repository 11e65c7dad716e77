#include "schedule/pipeline/schedules.h"

#include <algorithm>
#include <vector>

namespace gptrain::inline schedule {

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

}  // namespace gptrain::schedule
