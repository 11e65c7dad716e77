// Where the time of one step goes, of a step that ran or of a planned one: a table by op, and a trace for a viewer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/int128.h"
#include "step/step_log.h"
#include "step/time_span.h"

namespace gptrain {

// Says when the parts of a step ran, or would run, one after the other: what comes before the first action, each action,
// what comes after the last one.
class StepClock {
 public:
  virtual ~StepClock() = default;
  // Fills one span for each event of the next part, and returns that of its ops and waits.
  virtual TimeSpan next(std::vector<TimeSpan>& times) = 0;
  virtual double end() const = 0;  // of everything so far
};
// Of the log that it is given, which outlives the clock.
using ClockMaker = std::function<std::unique_ptr<StepClock>(const StepLog&)>;

// Times in seconds on the clock of steady_seconds.
struct StepProfile {
  int64_t rank = 0;
  int64_t step = 0;             // 0: planned
  DType compute = DType::f32;   // dtype of the matrix products
  double matrix_flops = 0;      // FLOP/s of large products in it, measured or of the data sheet: the limit of products
  double bytes_per_second = 0;  // of copying memory, likewise: the limit of ops without
  double start_seconds = 0;
  double end_seconds = 0;
  double data_seconds = 0;  // of the step, waiting for data; outside all events
  StepLog log;
  std::vector<TimeSpan> action_times = {};  // by action; of a planned step none
  ClockMaker planned = {};  // of a planned step: its events have no times, and this gives them

  double seconds() const { return end_seconds - start_seconds; }
};

// An action's part of a step, or what comes before the first one and after the last one.
struct StepPart {
  const LoggedAction* action;  // null: none
  TimeSpan time;
  std::span<const Event> events;
  std::span<const TimeSpan> times;  // by event
};
void for_each_part(const StepProfile& profile, const std::function<void(const StepPart&)>& body);

// One row of the table: the events that have its label, added up.
struct ProfileRow {
  std::string label;
  int64_t calls = 0;
  double seconds = 0;
  Flops executed_flops = 0;
  Flops bytes_moved = 0;
  double limit = 0;  // FLOP/s where there are FLOPs, else bytes/s; 0: none
};

// What the step's time is made of, most time first: ops, copies that are not beside them, and waits.
std::vector<ProfileRow> rows_by_op(const StepProfile& profile);
// The same with a row for each shape ("linear_forward N=8192 in=768 out=2304 bf16").
std::vector<ProfileRow> rows_by_shape(const StepProfile& profile);
// Time of the step that is in no event and was not spent waiting for data: the loop.
double seconds_outside(const StepProfile& profile);

// For people: the rows by op, the rest and the total, which add up to the step; then what runs beside the ops, which is
// in no other row but as waits; then the shapes that took longest.
// Rates count executed FLOPs, or bytes as footprints do (each operand once, so more than 100% of the copy rate means
// that a cache helped).
std::string step_profile_table(const StepProfile& profile);

// For Perfetto and chrome://tracing: JSON of complete events in the Trace Event Format, times in microseconds from the
// start of each rank's step. A rank is a process with a row each for the actions of the schedule, ops, copies, waits and
// the lanes; rows without events are left out. A file is the head, the events of one or more ranks with `trace_between`
// between them, and the tail.
constexpr std::string_view trace_head = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
constexpr std::string_view trace_between = ",\n";
constexpr std::string_view trace_tail = "\n]}\n";
using TextSink = std::function<void(std::string_view)>;
void write_trace_events(const StepProfile& profile, const TextSink& write);

}  // namespace gptrain
