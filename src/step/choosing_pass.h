// Choice of a device library's algorithms.
#pragma once

namespace gptrain::inline step {

struct StepParts;

// Does the work of TrainingStep::choose_algorithms.
void choose_algorithms(StepParts& parts);

}  // namespace gptrain::step
