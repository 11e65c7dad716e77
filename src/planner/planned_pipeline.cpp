#include "planner/planned_pipeline.h"

#include "base/enum_array.h"

namespace gptrain::inline planner {

std::string_view bar_name(PipelineBar::Kind kind) {
  constexpr EnumArray<PipelineBar::Kind, std::string_view, 4> names = {"forward", "backward", "weight gradients",
                                                                       "update"};
  return names[kind];
}

double PlannedPipeline::bubble() const {
  double busy = 0;
  double waiting = 0;
  for (const PlannedStage& stage : stages) {
    busy += stage.busy_seconds;
    waiting += stage.waiting_seconds;
  }
  return busy > 0 ? waiting / busy : 0;
}

}  // namespace gptrain::planner
