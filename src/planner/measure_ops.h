// Measures the times of ops on a device of this machine, for the tables of MeasuredMachine.
#pragma once

#include <functional>
#include <vector>

#include "machine/measured_machine.h"
#include "ops/backend.h"

namespace gptrain::inline planner {

// Returns the median, or the upper of the two middle samples. REQUIRES: at least one sample.
double median(std::vector<double> samples);
// Returns the lower quartile. REQUIRES: at least one sample.
double quick_quarter(std::vector<double> samples);

// The time for one measurement.
struct MeasuringTime {
  double seconds = 1;               // approximate; each sample is taken at least once
  std::function<void()> tick = {};  // called from time to time; may be empty
};

// Tables of fast runs: the lower quartile of the samples, on which other work on the machine has little effect.
struct MeasuredOps {
  RateTables tables = {};
  RateTables in_steps = {};        // see MeasuredShare
  double between_ops_seconds = 0;  // see MeasuredShare
  // Sums over the models that were run: the median step; fast runs of all its ops.
  double step_seconds = 0, quick_seconds = 0;

  // Returns MeasuredShare::stretch: how much slower whole steps are than the fast runs of their ops.
  double stretch() const { return quick_seconds > 0 ? step_seconds / quick_seconds : 1; }
};

// Measures the three linear ops with factors of the dtype, over a grid of sizes as fine and as large as the time
// allows. Replaces the backend's scratch memory, and leaves it without.
void measure_products(Backend& backend, DType dtype, const MeasuringTime& time, MeasuredOps& ops);
// Measures the three linear ops of experts with few and with many rows each, in the same way.
void measure_grouped_products(Backend& backend, DType dtype, const MeasuringTime& time, MeasuredOps& ops);
// Measures attention forward and backward, in the same way.
void measure_attention(Backend& backend, DType dtype, const MeasuringTime& time, MeasuredOps& ops);
// Returns the FLOP/s of a product of medium size.
double usual_rate(Backend& backend, DType dtype);

// Runs training steps of small models of several sizes. Measures all other ops there, in their usual order and with the
// cache contents of a step, and how much longer products and attention take than in `ops`.
// REQUIRES: measure_products and measure_attention have filled `ops`.
void measure_steps(Backend& backend, DType dtype, const MeasuringTime& time, MeasuredOps& ops);

}  // namespace gptrain::planner
