#include "schedule/pipeline/pipeline.h"

#include <fmt/format.h>
#include <mutex>

#include "base/enum_array.h"

namespace gptrain::inline schedule {

std::string pass_text(const Pass& pass) {
  constexpr EnumArray<PassKind, std::string_view, 4> names = {"forward", "backward", "backward_input",
                                                              "backward_weight"};
  return fmt::format("{} of micro-batch {} through chunk {}", names[pass.kind], pass.micro_batch, pass.chunk);
}

std::shared_ptr<const PassLists> passes_of(const PipelineSchedule& schedule, const PipelineShape& shape) {
  struct Cached {
    std::string_view schedule;
    PipelineShape shape;
    std::shared_ptr<const PassLists> passes;
  };
  static std::mutex mutex;
  static Cached cached;
  const std::lock_guard lock(mutex);
  if (!cached.passes || cached.schedule != schedule.name || cached.shape != shape)
    cached = {schedule.name, shape, std::make_shared<const PassLists>(schedule.passes(shape))};
  return cached.passes;
}

}  // namespace gptrain::schedule
