// The pipeline schedules, each in a file of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "schedule/pipeline/pipeline.h"

namespace gptrain::inline schedule {

PipelineSchedule gpipe();          // Huang et al., arXiv 1811.06965
PipelineSchedule one_f_one_b();    // Narayanan et al., arXiv 1806.03377, flushed every step: arXiv 2104.04473
PipelineSchedule interleaved();    // 1F1B over several chunks a stage: arXiv 2104.04473
PipelineSchedule varuna();         // Athlur et al., EuroSys 2022
PipelineSchedule zero_bubble();    // ZB-H1 of Qi et al., arXiv 2401.10241, without the optimizer's rollback
PipelineSchedule zero_bubble_v();  // ZB-V of the same paper

// Returns the stage of a chunk if chunks are dealt to the stages round robin: chunk modulo stages.
int32_t stage_in_turn(const PipelineShape& shape, int32_t chunk);

// Returns all schedules. The first is the default.
std::span<const PipelineSchedule> pipeline_schedules();
// Returns null if no schedule has this name.
const PipelineSchedule* find_pipeline_schedule(std::string_view name);

}  // namespace gptrain::schedule
