#include "report/step_profile.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <map>

#include "base/json.h"
#include "report/flops_json.h"

namespace gptrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t most_shapes = 12;  // in the second table: the rest is in the trace

using LabelOf = std::function<std::string(const TimedEvent&)>;

std::string name_of(const TimedEvent& event) { return std::string(event.name); }

std::string name_and_shape_of(const TimedEvent& event) {
  return event.shape.empty() ? name_of(event) : fmt::format("{} {}", event.name, event.shape);
}

std::vector<ProfileRow> added_up(const std::vector<TimedEvent>& events, const LabelOf& label_of) {
  std::map<std::string, ProfileRow> by_label;
  for (const TimedEvent& event : events) {
    const std::string label = label_of(event);
    ProfileRow& row = by_label[label];
    row.label = label;
    row.calls += 1;
    row.seconds += event.end_seconds - event.start_seconds;
    row.executed_flops += event.executed_flops;
    row.bytes_moved += static_cast<Flops>(event.bytes_moved);
  }
  std::vector<ProfileRow> rows;
  for (const auto& [label, row] : by_label) rows.push_back(row);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ProfileRow& a, const ProfileRow& b) { return a.seconds > b.seconds; });
  return rows;
}

// What the step's time is made of.
std::vector<ProfileRow> rows_of_step(const StepProfile& profile, const LabelOf& label_of) {
  std::vector<TimedEvent> events = profile.ops.events;
  events.insert(events.end(), profile.waits.events.begin(), profile.waits.events.end());
  std::vector<ProfileRow> rows = added_up(events, label_of);
  for (ProfileRow& row : rows) {
    if (row.executed_flops > 0) row.limit = profile.matrix_flops;
    if (row.executed_flops == 0 && row.bytes_moved > 0) row.limit = profile.bytes_per_second;
  }
  return rows;
}

// Columns: label, calls, milliseconds, share of the step, rate, share of the limit.
std::string table_row(const ProfileRow& row, double step_seconds, size_t label_width) {
  std::string text = fmt::format("{:<{}} {:>6} {:>10.3f} {:>6.1f}%", row.label, label_width,
                                 row.calls > 0 ? fmt::format("{}", row.calls) : "", row.seconds * 1e3,
                                 100 * row.seconds / step_seconds);
  if (row.limit > 0 && row.seconds > 0) {
    const bool product = row.executed_flops > 0;
    const double rate = static_cast<double>(product ? row.executed_flops : row.bytes_moved) / row.seconds;
    text += fmt::format(" {:>8.1f} {:<7} {:>5.0f}%", rate / 1e9, product ? "GFLOP/s" : "GB/s", 100 * rate / row.limit);
  }
  return text + "\n";
}

std::string table_head(std::string_view label, size_t label_width) {
  return fmt::format("{:<{}} {:>6} {:>10} {:>7} {:>16} {:>6}\n", label, label_width, "calls", "ms", "step", "rate",
                     "limit");
}

size_t widest_label(const std::vector<ProfileRow>& rows) {
  size_t width = 0;
  for (const ProfileRow& row : rows) width = std::max(width, row.label.size());
  return width;
}

// Whole nanoseconds, so that an event that starts where another ends does not seem to overlap it.
int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

Json complete_event(std::string_view name, size_t row, const StepProfile& profile, double start, double end,
                    Json arguments) {
  const int64_t first = nanoseconds(start - profile.start_seconds);
  const int64_t last = nanoseconds(end - profile.start_seconds);
  return {{"name", name},
          {"ph", "X"},
          {"pid", 0},
          {"tid", row},
          {"ts", static_cast<double>(first) / 1e3},
          {"dur", static_cast<double>(last - first) / 1e3},
          {"args", std::move(arguments)}};
}

Json metadata(std::string_view kind, size_t row, const std::string& name) {
  return {{"name", kind}, {"ph", "M"}, {"pid", 0}, {"tid", row}, {"args", {{"name", name}}}};
}

}  // namespace

std::vector<ProfileRow> rows_by_op(const StepProfile& profile) { return rows_of_step(profile, name_of); }

std::vector<ProfileRow> rows_by_shape(const StepProfile& profile) { return rows_of_step(profile, name_and_shape_of); }

double seconds_outside(const StepProfile& profile) {
  double seconds = profile.seconds() - profile.data_seconds;
  for (const ProfileRow& row : rows_by_op(profile)) seconds -= row.seconds;
  return seconds;
}

std::string step_profile_table(const StepProfile& profile) {
  const std::vector<ProfileRow> ops = rows_by_op(profile);
  std::vector<ProfileRow> shapes = rows_by_shape(profile);
  shapes.resize(std::min(shapes.size(), most_shapes));
  std::vector<TimedEvent> items;
  for (const WorkTrack& lane : profile.lanes) items.insert(items.end(), lane.events.begin(), lane.events.end());
  const std::vector<ProfileRow> collectives = added_up(items, name_and_shape_of);
  const size_t width = std::max({widest_label(ops), widest_label(shapes), widest_label(collectives)});
  ProfileRow total{.label = "total", .seconds = profile.seconds(), .limit = profile.matrix_flops};
  for (const ProfileRow& row : ops) {
    total.calls += row.calls;
    total.executed_flops += row.executed_flops;
  }
  Flops model_flops = 0;
  for (const TimedEvent& event : profile.ops.events) model_flops += event.model_flops;
  const double model_rate = static_cast<double>(model_flops) / profile.seconds();

  std::string text = fmt::format("profile of step {}: {:.1f} ms, {:.1f} model GFLOP/s, mfu {:.1f}%\n", profile.step,
                                 profile.seconds() * 1e3, model_rate / 1e9, 100 * model_rate / profile.matrix_flops);
  text += fmt::format("limits of this machine: {:.1f} GFLOP/s in {} matrix products, {:.1f} GB/s for other ops\n",
                      profile.matrix_flops / 1e9, dtype_name(profile.compute), profile.bytes_per_second / 1e9);
  text += table_head("op", width);
  for (const ProfileRow& row : ops) text += table_row(row, profile.seconds(), width);
  text += table_row({.label = "waiting for data", .seconds = profile.data_seconds}, profile.seconds(), width);
  text += table_row({.label = "everything else", .seconds = seconds_outside(profile)}, profile.seconds(), width);
  text += table_row(total, profile.seconds(), width);
  if (!collectives.empty()) {
    text += table_head("collectives beside the ops", width);
    for (const ProfileRow& row : collectives) text += table_row(row, profile.seconds(), width);
  }
  text += table_head("op and shape, longest first", width);
  for (const ProfileRow& row : shapes) text += table_row(row, profile.seconds(), width);
  return text;
}

std::string step_profile_trace(const StepProfile& profile) {
  Json events = Json::array();
  events.push_back(metadata("process_name", 0, fmt::format("gptrain, step {}", profile.step)));
  events.push_back(metadata("thread_name", 0, "actions"));
  for (const TimedAction& timed : profile.actions) {
    Json arguments{{"unit", timed.action.unit}, {"micro_batch", timed.action.micro_batch}};
    events.push_back(complete_event(action_name(timed.action.kind), 0, profile, timed.start_seconds, timed.end_seconds,
                                    std::move(arguments)));
  }
  size_t row = 1;
  std::vector<const WorkTrack*> tracks = {&profile.ops, &profile.waits};
  for (const WorkTrack& lane : profile.lanes) tracks.push_back(&lane);
  for (const WorkTrack* track : tracks) {
    if (track->events.empty()) continue;
    events.push_back(metadata("thread_name", row, track->name));
    for (const TimedEvent& event : track->events) {
      Json arguments{{"shape", event.shape},
                     {"model_flops", flops_json(event.model_flops)},
                     {"executed_flops", flops_json(event.executed_flops)},
                     {"bytes_moved", event.bytes_moved}};
      events.push_back(
          complete_event(event.name, row, profile, event.start_seconds, event.end_seconds, std::move(arguments)));
    }
    ++row;
  }
  // One event a line: a trace of a long step stays readable in any editor.
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (size_t i = 0; i < events.size(); ++i) {
    if (i > 0) text += ",\n";
    text += json_text(events[i]);
  }
  return text + "\n]}\n";
}

}  // namespace gptrain
