// How long ops take on a device at hand, for the tables of a measured machine.
#pragma once

#include <functional>
#include <vector>

#include "ops/backend.h"
#include "planner/measured_machine.h"

namespace gptrain {

// The upper one of two in the middle. There is one at least.
double median(std::vector<double> samples);

// What all measurements of a share do with their time. `tick` is called now and then.
struct MeasuringTime {
  double seconds = 1;  // about; each measurement is made once at least
  std::function<void()> tick = {};
};

// The three linears with factors of the dtype, over a grid of sizes: as fine and as large as the time allows. Medians.
// The backend's scratch memory is set while this runs, and taken away.
void measure_products(Backend& backend, DType dtype, const MeasuringTime& time, RateTables& tables);
// Attention both ways, likewise.
void measure_attention(Backend& backend, DType dtype, const MeasuringTime& time, RateTables& tables);
// All other ops as they run in the training steps of small models of several sizes, in their order and with what caches
// hold then.
void measure_other_ops(Backend& backend, DType dtype, const MeasuringTime& time, RateTables& tables);

}  // namespace gptrain
