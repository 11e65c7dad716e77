// Values of a step that has begun, for the report of its result.
#pragma once

namespace gptrain::inline train {

struct BegunStep {
  double lr;
  double data_seconds;  // time spent waiting for data
};

}  // namespace gptrain::train
