// The time of one profiled or planned step, in parts: a table by op, and a trace for a viewer.
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

namespace gptrain::inline step {

// Gives the times of a step's parts in order: the events before the first action, each action, and the events after the
// last one.
class StepClock {
 public:
  virtual ~StepClock() = default;
  // Replaces `times` by one span for each event of the next part. Returns the span of the part's ops and waits.
  virtual TimeSpan next(std::vector<TimeSpan>& times) = 0;
  virtual double end() const = 0;  // seconds at which all parts given so far are over
};
// Makes a clock for a log. REQUIRES: the log outlives the clock.
using ClockMaker = std::function<std::unique_ptr<StepClock>(const StepLog&)>;

// Times in seconds on the clock of steady_seconds.
struct StepProfile {
  int64_t rank = 0;
  int64_t step = 0;             // number of the step from 1; 0: planned
  DType compute = DType::f32;   // dtype of the matrix products
  double matrix_flops = 0;      // FLOP/s of large products in this dtype, measured or from the data sheet
  double bytes_per_second = 0;  // memory bandwidth, measured or from the data sheet: the limit of ops without products
  double start_seconds = 0;
  double end_seconds = 0;
  double data_seconds = 0;  // waiting for data, outside all events
  StepLog log;
  std::vector<TimeSpan> action_times = {};  // by action; empty for a planned step
  ClockMaker planned = {};  // times of a planned step, whose events have none; empty for a profiled step

  double seconds() const { return end_seconds - start_seconds; }
};

// One action, or the events before the first action or after the last one.
struct StepPart {
  const LoggedAction* action;  // null for the events before and after all actions
  TimeSpan time;
  std::span<const Event> events;
  std::span<const TimeSpan> times;  // by event
};
void for_each_part(const StepProfile& profile, const std::function<void(const StepPart&)>& body);

// One row of the table: the sum of the events with this label.
struct ProfileRow {
  std::string label;
  int64_t calls = 0;
  double seconds = 0;
  Flops executed_flops = 0;
  Flops bytes_moved = 0;
  double limit = 0;  // FLOP/s for rows with FLOPs, else bytes/s; 0: the row has no limit
};

// Returns a row for each op, for the copies among the ops and for the waits, the longest first. Leaves out events that
// run beside the ops.
std::vector<ProfileRow> rows_by_op(const StepProfile& profile);
// Returns the same with a row for each shape ("linear_forward N=8192 in=768 out=2304 bf16").
std::vector<ProfileRow> rows_by_shape(const StepProfile& profile);
// Returns the seconds of the step that are in no event and not spent waiting for data: the loop's own time.
double seconds_outside(const StepProfile& profile);

// Returns the table for people: the rows by op, the rest and the total, which add up to the step; then the events
// beside the ops; then the shapes that took longest. Rates are in executed FLOPs, or in bytes as footprints count them:
// each operand once. So a rate above 100% of the copy rate means that a cache helped.
std::string step_profile_table(const StepProfile& profile);

// A trace for Perfetto and chrome://tracing: JSON of complete events in the Trace Event Format, with times in
// microseconds from the start of each rank's step. Each rank is a process with a row for the actions of the schedule,
// ops, copies, waits and each lane; rows without events are left out. A file is `trace_head`, the events of one or more
// ranks separated by `trace_between`, and `trace_tail`.
constexpr std::string_view trace_head = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
constexpr std::string_view trace_between = ",\n";
constexpr std::string_view trace_tail = "\n]}\n";
using TextSink = std::function<void(std::string_view)>;
void write_trace_events(const StepProfile& profile, const TextSink& write);

}  // namespace gptrain::step
