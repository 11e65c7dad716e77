#include "step/step_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <unordered_map>
#include <utility>

#include "base/json.h"
#include "ops/op_event.h"
#include "step/flops_json.h"

namespace gptrain::inline step {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t most_shapes = 12;  // rows of the second table; the trace has all shapes

using LabelOf = std::function<std::string(const Event&)>;

std::string name_of(const Event& event) { return std::string(event.name); }

std::string name_and_shape_of(const Event& event) {
  return event.shape.empty() ? name_of(event) : fmt::format("{} {}", event.name, event.shape);
}

// Returns true if the event takes no time of the step itself. A profiled step waits for copies beside the ops; a
// planned step does not.
bool runs_beside_ops(const StepProfile& profile, const Event& event) {
  if (event.queue != Event::Queue::ops) return event.kind == Event::Kind::op || event.beside_ops;
  return event.kind == Event::Kind::collective || (profile.planned && event.beside_ops);
}

// Adds up the events that run beside the ops, or all others.
class Rows {
 public:
  Rows(const StepProfile& profile, bool beside_ops, LabelOf label_of)
      : profile_(profile), beside_ops_(beside_ops), label_of_(std::move(label_of)), known_(profile.log.blocks.size()) {}

  std::vector<ProfileRow> added_up() {
    for_each_part(profile_, [&](const StepPart& part) { add(part); });
    std::erase_if(rows_, [](const ProfileRow& row) { return row.calls == 0; });
    std::sort(rows_.begin(), rows_.end(), [](const ProfileRow& a, const ProfileRow& b) {
      return a.seconds != b.seconds ? a.seconds > b.seconds : a.label < b.label;
    });
    return std::move(rows_);
  }

 private:
  static constexpr size_t no_row = ~size_t{0};

  void add(const StepPart& part) {
    std::vector<size_t> of_this_part;
    std::vector<size_t>& row_indices = part.action == nullptr ? of_this_part : known_[part.action->block];
    if (row_indices.empty()) {
      for (const Event& event : part.events) row_indices.push_back(profile_row(event));
    }
    for (size_t i = 0; i < part.events.size(); ++i) {
      if (row_indices[i] == no_row) continue;
      const Event& event = part.events[i];
      // A planned step logs every wait, a profiled step only those that took time.
      if (event.kind == Event::Kind::wait && part.times[i].seconds() == 0) continue;
      ProfileRow& row = rows_[row_indices[i]];
      row.calls += 1;
      row.seconds += part.times[i].seconds();
      row.executed_flops += event.executed_flops;
      row.bytes_moved += static_cast<Flops>(event.bytes_moved);
    }
  }

  size_t profile_row(const Event& event) {
    if (runs_beside_ops(profile_, event) != beside_ops_) return no_row;
    const std::string label = label_of_(event);
    const auto [entry, is_new] = by_label_.try_emplace(label, rows_.size());
    if (is_new) {
      ProfileRow& row = rows_.emplace_back();
      row.label = label;
      if (event.executed_flops > 0) {
        row.limit = profile_.matrix_flops;
      } else if (event.kind == Event::Kind::op && event.bytes_moved > 0) {
        row.limit = profile_.bytes_per_second;
      }
    }
    return entry->second;
  }

  const StepProfile& profile_;
  const bool beside_ops_;
  const LabelOf label_of_;
  std::vector<ProfileRow> rows_;
  std::unordered_map<std::string, size_t> by_label_;
  std::vector<std::vector<size_t>> known_;  // by block: the row of each event
};

// Returns true if the rate is so far above its limit that the table has to explain it.
bool beats_its_limit(const ProfileRow& row) {
  constexpr double rounding = 1.005;
  const Flops amount = row.executed_flops > 0 ? row.executed_flops : static_cast<Flops>(row.bytes_moved);
  return row.limit > 0 && static_cast<double>(amount) > rounding * row.limit * row.seconds;
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

// Row numbers of the trace; 1 to 3 are ops, copies and waits.
constexpr size_t actions_row = 0;
constexpr size_t first_lane_row = 4;
constexpr size_t offload_row = first_lane_row + num_lanes;  // copies to the host beside the ops
constexpr size_t fetch_row = offload_row + 1;               // copies back
constexpr size_t update_row = fetch_row + 1;                // updates beside the ops, then their reads and writes
constexpr size_t num_rows = update_row + 3;

size_t trace_row(const Event& event, const LoggedAction* action) {
  if (event.queue == Event::Queue::update && event.kind == Event::Kind::copy)
    return event.name == download_name ? offload_row : fetch_row;
  if (event.queue != Event::Queue::ops) return update_row + static_cast<size_t>(event.queue) - 1;
  switch (event.kind) {
    case Event::Kind::op:
      return 1;
    case Event::Kind::copy:
      if (action != nullptr && action->kind == ActionKind::offload) return offload_row;
      if (action != nullptr && action->kind == ActionKind::fetch) return fetch_row;
      return 2;
    case Event::Kind::wait:
      return 3;
    case Event::Kind::collective:
      return first_lane_row + static_cast<size_t>(event.channel.lane);
  }
  return 0;
}

std::string row_name(size_t row) {
  constexpr std::array names = {"actions", "ops", "copies", "waits"};
  if (row < first_lane_row) return names[row];
  constexpr std::array beside = {"lane offload", "lane fetch", "lane update", "lane disk_read", "lane disk_write"};
  if (row >= offload_row) return beside[row - offload_row];
  return fmt::format("lane {}", lane_names[row - first_lane_row]);
}

class TraceWriter {
 public:
  TraceWriter(const StepProfile& profile, const TextSink& write) : profile_(profile), write_(write) {}

  void write_all() {
    const std::string what = profile_.planned ? "planned step" : fmt::format("step {}", profile_.step);
    write_metadata("process_name", 0, {{"name", fmt::format("rank {}, {}", profile_.rank, what)}});
    write_metadata("process_sort_index", 0, {{"sort_index", profile_.rank}});
    for_each_part(profile_, [&](const StepPart& part) {
      if (part.action != nullptr) {
        write_event(action_name(part.action->kind), actions_row, part.time,
                    {{"unit", part.action->unit}, {"micro_batch", part.action->micro_batch}});
      }
      for (size_t i = 0; i < part.events.size(); ++i) write_event(part.events[i], part.times[i], part.action);
    });
  }

 private:
  void write_event(const Event& event, const TimeSpan& time, const LoggedAction* action) {
    if (event.kind == Event::Kind::wait && time.seconds() == 0) return;
    Json arguments{{"shape", event.shape},
                   {"model_flops", flops_json(event.model_flops)},
                   {"executed_flops", flops_json(event.executed_flops)},
                   {"bytes_moved", event.bytes_moved}};
    if (event.kind == Event::Kind::collective) {
      arguments["sent_bytes"] = event.sent_bytes;
      arguments["group"] = group_names[event.channel.group];
    }
    write_event(event.name, trace_row(event, action), time, std::move(arguments));
  }

  void write_event(std::string_view name, size_t row, const TimeSpan& time, Json arguments) {
    if (!named_[row]) {
      named_[row] = true;
      write_metadata("thread_name", row, {{"name", row_name(row)}});
    }
    const int64_t first = nanoseconds(time.start_seconds);
    const int64_t last = nanoseconds(time.end_seconds);
    write_line({{"name", name},
                {"ph", "X"},
                {"pid", profile_.rank},
                {"tid", row},
                {"ts", static_cast<double>(first) / 1e3},
                {"dur", static_cast<double>(last - first) / 1e3},
                {"args", std::move(arguments)}});
  }

  void write_metadata(std::string_view kind, size_t row, Json arguments) {
    write_line({{"name", kind}, {"ph", "M"}, {"pid", profile_.rank}, {"tid", row}, {"args", std::move(arguments)}});
  }

  // Writes one event a line, so that any editor can show the trace of a long step.
  void write_line(const Json& event) {
    if (!is_first_) write_(trace_between);
    is_first_ = false;
    write_(json_text(event));
  }

  // Returns whole nanoseconds since the step's start. Rounding keeps adjacent events from seeming to overlap.
  int64_t nanoseconds(double seconds) const { return std::llround((seconds - profile_.start_seconds) * 1e9); }

  const StepProfile& profile_;
  const TextSink& write_;
  bool is_first_ = true;
  std::array<bool, num_rows> named_{};
};

// The clock of a profiled step, whose events have their times.
class MeasuredTimes final : public StepClock {
 public:
  explicit MeasuredTimes(const StepProfile& profile) : profile_(profile) {}

  TimeSpan next(std::vector<TimeSpan>& times) override {
    const StepLog& log = profile_.log;
    const size_t part = part_++;
    const bool is_action = part > 0 && part <= log.actions.size();
    const EventBlock& events = is_action ? log.blocks[log.actions[part - 1].block] : part == 0 ? log.before : log.after;
    times.clear();
    for (const Event& event : events) times.push_back({event.start_seconds, event.end_seconds});
    return is_action ? profile_.action_times[part - 1] : TimeSpan{};
  }
  double end() const override { return profile_.end_seconds; }

 private:
  const StepProfile& profile_;
  size_t part_ = 0;
};

}  // namespace

void for_each_part(const StepProfile& profile, const std::function<void(const StepPart&)>& body) {
  const StepLog& log = profile.log;
  const std::unique_ptr<StepClock> clock =
      profile.planned ? profile.planned(log) : std::make_unique<MeasuredTimes>(profile);
  std::vector<TimeSpan> times;
  const auto visit = [&](const LoggedAction* action, const EventBlock& events) {
    const TimeSpan time = clock->next(times);
    body(StepPart{action, time, events, times});
  };
  visit(nullptr, log.before);
  for (const LoggedAction& action : log.actions) visit(&action, log.blocks[action.block]);
  visit(nullptr, log.after);
}

std::vector<ProfileRow> rows_by_op(const StepProfile& profile) { return Rows(profile, false, name_of).added_up(); }

std::vector<ProfileRow> rows_by_shape(const StepProfile& profile) {
  return Rows(profile, false, name_and_shape_of).added_up();
}

double seconds_outside(const StepProfile& profile) {
  double seconds = profile.seconds() - profile.data_seconds;
  for (const ProfileRow& row : rows_by_op(profile)) seconds -= row.seconds;
  return seconds;
}

namespace {

std::string table_title(const StepProfile& profile) {
  Flops model_flops = 0;
  for (const OpTotals& op : op_table(profile.log)) model_flops += op.model_flops;
  const double rate = static_cast<double>(model_flops) / profile.seconds();
  const std::string what = profile.planned ? fmt::format("planned step of rank {}", profile.rank)
                                           : fmt::format("profile of step {}", profile.step);
  return fmt::format("{}: {:.1f} ms, {:.1f} model GFLOP/s, mfu {:.1f}%\n", what, profile.seconds() * 1e3, rate / 1e9,
                     100 * rate / profile.matrix_flops) +
         fmt::format("limits of {}: {:.1f} GFLOP/s in {} matrix products, {:.1f} GB/s for other ops\n",
                     profile.planned ? "the target" : "this machine when the run began", profile.matrix_flops / 1e9,
                     dtype_name(profile.compute), profile.bytes_per_second / 1e9);
}

}  // namespace

std::string step_profile_table(const StepProfile& profile) {
  const std::vector<ProfileRow> ops = rows_by_op(profile);
  std::vector<ProfileRow> shapes = rows_by_shape(profile);
  shapes.resize(std::min(shapes.size(), most_shapes));
  const std::vector<ProfileRow> beside = Rows(profile, true, name_and_shape_of).added_up();
  const size_t width = std::max({widest_label(ops), widest_label(shapes), widest_label(beside)});
  ProfileRow total{.label = "total", .seconds = profile.seconds(), .limit = profile.matrix_flops};
  for (const ProfileRow& row : ops) {
    total.calls += row.calls;
    total.executed_flops += row.executed_flops;
  }
  std::string text = table_title(profile) + table_head("op", width);
  for (const ProfileRow& row : ops) text += table_row(row, profile.seconds(), width);
  text += table_row({.label = "waiting for data", .seconds = profile.data_seconds}, profile.seconds(), width);
  text += table_row({.label = "everything else", .seconds = seconds_outside(profile)}, profile.seconds(), width);
  text += table_row(total, profile.seconds(), width);
  if (!beside.empty()) {
    text += table_head("beside the ops", width);
    for (const ProfileRow& row : beside) text += table_row(row, profile.seconds(), width);
  }
  text += table_head("op and shape, longest first", width);
  for (const ProfileRow& row : shapes) text += table_row(row, profile.seconds(), width);
  if (!profile.planned && std::any_of(ops.begin(), ops.end(), beats_its_limit)) {
    text +=
        "A rate above 100% of its limit means that the data of the op were in caches, or that other work on the "
        "machine "
        "disturbed the short measurement of the limit when the run began.\n";
  }
  return text;
}

void write_trace_events(const StepProfile& profile, const TextSink& write) { TraceWriter(profile, write).write_all(); }

}  // namespace gptrain::step
