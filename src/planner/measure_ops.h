// How long ops take on a device at hand, for the tables of a measured machine.
#pragma once

#include <functional>
#include <vector>

#include "ops/backend.h"
#include "machine/measured_machine.h"

namespace gptrain {

// The upper one of two in the middle. There is one at least.
double median(std::vector<double> samples);
// The lower quartile, likewise.
double quick_quarter(std::vector<double> samples);

// What all measurements of a share do with their time. `tick` is called now and then.
struct MeasuringTime {
  double seconds = 1;  // about; each measurement is made once at least
  std::function<void()> tick = {};
};

// Tables of quick runs: the lower quartile of the samples, which other work on the machine hardly touches. How much
// longer steps took than the quick runs of their ops is the share's stretch.
struct MeasuredOps {
  RateTables tables = {};
  RateTables in_steps = {};         // as MeasuredShare has it,
  double between_ops_seconds = 0;  // likewise
  double step_seconds = 0, quick_seconds = 0;  // of the median step of each model, and of its ops

  double stretch() const { return quick_seconds > 0 ? step_seconds / quick_seconds : 1; }
};

// The three linears with factors of the dtype, over a grid of sizes: as fine and as large as the time allows. The
// backend's scratch memory is set while this runs, and taken away.
void measure_products(Backend& backend, DType dtype, const MeasuringTime& time, MeasuredOps& ops);
// Attention both ways, likewise.
void measure_attention(Backend& backend, DType dtype, const MeasuringTime& time, MeasuredOps& ops);
// FLOP/s of a product that is neither small nor large.
double usual_rate(Backend& backend, DType dtype);

// Training steps of small models of several sizes: all other ops in their order and with what caches hold then, and
// how much longer products and attention, which have been measured before, take there.
void measure_steps(Backend& backend, DType dtype, const MeasuringTime& time, MeasuredOps& ops);

}  // namespace gptrain
