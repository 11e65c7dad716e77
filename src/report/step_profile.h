// Where the time of one step went: a table by op, and a trace for a viewer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/int128.h"
#include "base/timed_event.h"
#include "schedule/schedule.h"

namespace gptrain {

struct TimedAction {
  Action action;
  double start_seconds = 0;
  double end_seconds = 0;
};

// Work of one kind, a row of its own in the trace.
struct WorkTrack {
  std::string name;
  std::vector<TimedEvent> events;  // in order of time, without overlap
};

// Times in seconds on the clock of steady_seconds.
struct StepProfile {
  int64_t step = 0;
  DType compute = DType::f32;   // dtype of the matrix products
  double matrix_flops = 0;      // FLOP/s of large products in it, measured: the limit of events with FLOPs
  double bytes_per_second = 0;  // of copying memory, measured: the limit of ops without
  double start_seconds = 0;
  double end_seconds = 0;
  double data_seconds = 0;  // of the step, waiting for data; outside all events
  std::vector<TimedAction> actions;
  WorkTrack ops;                 // with the actions, what the step's time is made of
  WorkTrack waits;               // for other ranks: the part of the lanes' time that nothing hides
  std::vector<WorkTrack> lanes;  // of communication, beside the ops and each other

  double seconds() const { return end_seconds - start_seconds; }
};

// One row of the table: the events that have its label, added up.
struct ProfileRow {
  std::string label;
  int64_t calls = 0;
  double seconds = 0;
  Flops executed_flops = 0;
  Flops bytes_moved = 0;
  double limit = 0;  // FLOP/s where there are FLOPs, else bytes/s; 0: none
};

// One row per op and for the waits, most time first.
std::vector<ProfileRow> rows_by_op(const StepProfile& profile);
// One row per op and shape, and for the waits ("linear_forward N=8192 in=768 out=2304 bf16"), most time first.
std::vector<ProfileRow> rows_by_shape(const StepProfile& profile);
// Time of the step that is in no event and was not spent waiting for data: the loop, and copies to and from the device.
double seconds_outside(const StepProfile& profile);

// For people: the rows by op, the rest and the total, which add up to the step; then the collectives, which are in no
// other row but as waits; then the shapes that took longest.
// Rates count executed FLOPs, or bytes as footprints do (each operand once, so more than 100% of the copy rate means
// that a cache helped).
std::string step_profile_table(const StepProfile& profile);

// For Perfetto and chrome://tracing: JSON of complete events in the Trace Event Format, times in microseconds from the
// start of the step; the actions of the schedule in one row, each track that is not empty in one below.
std::string step_profile_trace(const StepProfile& profile);

}  // namespace gptrain
