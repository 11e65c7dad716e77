#include "report/run_page.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <limits>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/text_parts.h"
#include "base/units.h"
#include "report/html_page.h"
#include "report/svg_plot.h"

namespace gptrain::inline report {
namespace {

using nlohmann::json;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr size_t max_smoothed_points = 500;

double number(const json& record, const char* key) {
  const auto value = record.find(key);
  return value != record.end() && value->is_number() ? value->get<double>() : not_a_number;
}

int64_t integer(const json& record, const char* key) {
  const auto value = record.find(key);
  return value != record.end() && value->is_number_integer() ? value->get<int64_t>() : 0;
}

RunHistory::Step parse_step(const json& record) {
  const auto skipped = record.find("skipped");
  return {.step = integer(record, "step"),
          .tokens = integer(record, "tokens"),
          .loss = number(record, "loss"),
          .grad_norm = number(record, "grad_norm"),
          .lr = number(record, "lr"),
          .step_seconds = number(record, "step_seconds"),
          .tokens_per_second = number(record, "tokens_per_second"),
          .mfu = number(record, "mfu"),
          .peak_bytes = number(record, "peak_bytes"),
          .skipped = skipped != record.end() && skipped->is_boolean() && skipped->get<bool>()};
}

// Adds the loads of a step's record, if it has them. Leaves out layers whose number of experts is not that of before.
void add_loads(const json& record, std::vector<LayerLoads>& all) {
  const auto moe = record.find("moe");
  if (moe == record.end() || !moe->is_object() || !moe->contains("loads")) return;
  const json &layers = (*moe)["layer"], &loads = (*moe)["loads"];
  for (size_t i = 0; layers.is_array() && loads.is_array() && i < std::min(layers.size(), loads.size()); ++i) {
    if (!layers[i].is_number_integer() || !loads[i].is_array()) continue;
    ExpertLoads step{.step = integer(record, "step"), .loads = {}};
    for (const json& load : loads[i]) step.loads.push_back(load.is_number() ? load.get<double>() : 0);
    const auto layer = layers[i].get<int64_t>();
    auto found = std::find_if(all.begin(), all.end(), [&](const LayerLoads& of) { return of.layer == layer; });
    if (found == all.end()) found = all.insert(found, {.layer = layer, .steps = {}});
    const bool fits = found->steps.empty() || found->steps.front().loads.size() == step.loads.size();
    if (fits && !step.loads.empty()) found->steps.push_back(std::move(step));
  }
}

template <typename Record, typename Value>
std::vector<PlotPoint> points_of(const std::vector<Record>& records, Value value, double unit = 1) {
  std::vector<PlotPoint> points;
  points.reserve(records.size());
  for (const Record& record : records) points.push_back({static_cast<double>(record.step), record.*value / unit});
  return points;
}

// Returns the median of the finite values; NaN if there are none.
double median_value(const std::vector<PlotPoint>& points) {
  std::vector<double> values;
  for (const PlotPoint& point : points) {
    if (std::isfinite(point.y)) values.push_back(point.y);
  }
  if (values.empty()) return not_a_number;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// The extremes and ends of a series; null if no point is finite. Points into the series.
struct Extent {
  const PlotPoint *first = nullptr, *last = nullptr, *lowest = nullptr, *highest = nullptr;
};

Extent extent_of(const std::vector<PlotPoint>& points) {
  Extent extent;
  for (const PlotPoint& point : points) {
    if (!std::isfinite(point.y)) continue;
    if (extent.first == nullptr) extent.first = &point;
    extent.last = &point;
    if (extent.lowest == nullptr || point.y < extent.lowest->y) extent.lowest = &point;
    if (extent.highest == nullptr || point.y > extent.highest->y) extent.highest = &point;
  }
  return extent;
}

std::string format_loss(const PlotPoint* point) { return point == nullptr ? "-" : fmt::format("{:.4f}", point->y); }

std::string at_step(const PlotPoint* point) {
  return point == nullptr ? "" : fmt::format("at step {}", format_grouped(std::llround(point->x)));
}

std::vector<HtmlPage::Fact> summary_of(const RunHistory& history) {
  const auto losses = points_of(history.steps, &RunHistory::Step::loss);
  const auto validation_losses = points_of(history.validations, &RunHistory::Validation::loss);
  const auto peaks = points_of(history.steps, &RunHistory::Step::peak_bytes);
  const Extent loss = extent_of(losses), validation = extent_of(validation_losses), peak = extent_of(peaks);
  const double step_seconds = median_value(points_of(history.steps, &RunHistory::Step::step_seconds));
  const double speed = median_value(points_of(history.steps, &RunHistory::Step::tokens_per_second));
  const double mfu = median_value(points_of(history.steps, &RunHistory::Step::mfu));
  const auto skipped =
      std::count_if(history.steps.begin(), history.steps.end(), [](const auto& s) { return s.skipped; });
  const int64_t last_step = history.steps.empty() ? 0 : history.steps.back().step;
  const int64_t tokens = history.steps.empty() ? 0 : history.steps.back().tokens;

  std::vector<HtmlPage::Fact> facts = {
      {"Steps", format_grouped(last_step)},
      {"Tokens", format_count(static_cast<double>(tokens))},
      {"First loss", format_loss(loss.first), at_step(loss.first)},
      {"Last loss", format_loss(loss.last), at_step(loss.last)},
      {"Best loss", format_loss(loss.lowest), at_step(loss.lowest)},
      {"Validation loss", format_loss(validation.last), at_step(validation.last)},
      {"Best validation loss", format_loss(validation.lowest), at_step(validation.lowest)},
  };
  const auto per_byte = points_of(history.validations, &RunHistory::Validation::bits_per_byte);
  if (const PlotPoint* const last = extent_of(per_byte).last; last != nullptr)
    facts.push_back({"Validation bits per byte", format_loss(last), at_step(last)});
  facts.push_back({"Median step time", std::isnan(step_seconds) ? "-" : seconds_text(step_seconds)});
  facts.push_back({"Median throughput", std::isnan(speed) ? "-" : format_count(speed) + " tok/s"});
  facts.push_back({"Median MFU", std::isnan(mfu) ? "-" : fmt::format("{:.1f}%", 100 * mfu)});
  facts.push_back({"Peak memory", peak.highest == nullptr ? "-" : format_bytes(peak.highest->y)});
  facts.push_back({"Skipped steps", format_grouped(skipped)});
  if (!history.rollbacks.empty()) {
    const RunHistory::Rollback& last = history.rollbacks.back();
    facts.push_back({"Rollbacks", format_grouped(std::ssize(history.rollbacks)),
                     fmt::format("the last from step {} to {}, {} samples left out", format_grouped(last.from_step),
                                 format_grouped(last.step), format_grouped(last.left_out))});
  }
  return facts;
}

std::string description_of(std::string_view name, const std::vector<PlotPoint>& points) {
  const Extent extent = extent_of(points);
  if (extent.first == nullptr) return fmt::format("{}: no data yet.", name);
  return fmt::format("{}: {:.4g} at step {}, {:.4g} at step {}; lowest {:.4g}, highest {:.4g}.", name, extent.first->y,
                     extent.first->x, extent.last->y, extent.last->x, extent.lowest->y, extent.highest->y);
}

std::string render_loss_plot(const RunHistory& history) {
  const auto training = points_of(history.steps, &RunHistory::Step::loss);
  const auto validation = points_of(history.validations, &RunHistory::Validation::loss);
  return render_plot(
      {.id = "loss",
       .title = "Loss",
       .description = description_of("Training loss", training) + " " + description_of("Validation loss", validation),
       .full_width = true,
       .series = {{"training", SeriesStyle::faint_line, 0, training},
                  {"smoothed", SeriesStyle::line, 0, smooth(training, max_smoothed_points)},
                  {"validation", SeriesStyle::markers, 1, validation}}});
}

Plot step_plot(const char* id, const std::string& title, const std::vector<PlotPoint>& points) {
  return {.id = id, .title = title, .description = description_of(title, points), .y_from_zero = true};
}

std::string render_smooth_plot(const char* id, const std::string& title, const std::vector<PlotPoint>& points) {
  Plot plot = step_plot(id, title, points);
  plot.series = {{title, SeriesStyle::line, 0, points}};
  return render_plot(plot);
}

std::string render_noisy_plot(const char* id, const std::string& title, const std::vector<PlotPoint>& points) {
  Plot plot = step_plot(id, title, points);
  plot.series = {{"each step", SeriesStyle::faint_line, 0, points},
                 {"smoothed", SeriesStyle::line, 0, smooth(points, max_smoothed_points)}};
  return render_plot(plot);
}

std::string render_plots(const RunHistory& history) {
  const auto& steps = history.steps;
  // The axis counts in the unit that suits the peak, since ticks of plain bytes would not be round.
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  const auto bytes = points_of(steps, &RunHistory::Step::peak_bytes);
  const PlotPoint* const peak = extent_of(bytes).highest;
  size_t unit = 0;
  double unit_bytes = 1;
  for (; peak != nullptr && unit + 1 < std::size(units) && peak->y >= 1024 * unit_bytes; ++unit) unit_bytes *= 1024;

  return render_loss_plot(history) +
         render_smooth_plot("lr", "Learning rate", points_of(steps, &RunHistory::Step::lr)) +
         render_noisy_plot("grad-norm", "Gradient norm", points_of(steps, &RunHistory::Step::grad_norm)) +
         render_noisy_plot("throughput", "Throughput (tokens/s)",
                           points_of(steps, &RunHistory::Step::tokens_per_second)) +
         render_smooth_plot("memory", fmt::format("Peak memory ({})", units[unit]),
                            points_of(steps, &RunHistory::Step::peak_bytes, unit_bytes));
}

// Returns the last texts, newest first.
std::string render_samples(const RunHistory& history) {
  constexpr size_t shown = 8;
  std::string out;
  for (size_t i = 0; i < std::min(shown, history.samples.size()); ++i) {
    const RunHistory::Sample& sample = history.samples[history.samples.size() - 1 - i];
    out += fmt::format("<h3>after step {}</h3>\n<p><b>{}</b>{}</p>\n", format_grouped(sample.step),
                       escape_html(sample.prompt), escape_html(sample.text));
  }
  return out;
}

constexpr std::string_view samples_css = R"css(
section h3 { font-size: 13px; font-weight: 400; color: var(--muted); margin: 12px 0 0; }
section p { margin: 2px 0 0; white-space: pre-wrap; overflow-wrap: anywhere; }
)css";

}  // namespace

RunHistory read_run_history(const std::filesystem::path& metrics_file) {
  RunHistory history;
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(metrics_file, unreadable)) return history;
  std::ifstream in(metrics_file);
  if (!in) throw Error(ExitCode::usage, "cannot read {}", metrics_file.string());
  for (std::string line; std::getline(in, line);) {
    const json record = parse_json_or_discard(line);
    if (!record.is_object() || !record.contains("step")) continue;
    if (record.contains("rollback")) {
      history.rollbacks.push_back({integer(record, "step"), integer(record, "from_step"), integer(record, "left_out")});
    } else if (record.contains("validation_loss")) {
      history.validations.push_back(
          {integer(record, "step"), number(record, "validation_loss"), number(record, "bits_per_byte")});
    } else {
      history.steps.push_back(parse_step(record));
      add_loads(record, history.loads);
    }
  }
  if (in.bad()) throw Error(ExitCode::usage, "cannot read {}", metrics_file.string());
  return history;
}

void read_samples(const std::filesystem::path& samples_file, RunHistory& history) {
  std::error_code error;
  const bool is_there = std::filesystem::exists(samples_file, error);
  if (error) throw Error(ExitCode::usage, "cannot read {}: {}", samples_file.string(), error.message());
  if (!is_there) return;
  std::ifstream in(samples_file);
  if (!in) throw Error(ExitCode::usage, "cannot read {}", samples_file.string());
  const auto text = [](const json& record, const char* key) {
    const auto value = record.find(key);
    return value != record.end() && value->is_string() ? value->get<std::string>() : std::string();
  };
  for (std::string line; std::getline(in, line);) {
    const json record = parse_json_or_discard(line);
    if (record.is_object() && record.contains("step"))
      history.samples.push_back({integer(record, "step"), text(record, "prompt"), text(record, "text")});
  }
  if (in.bad()) throw Error(ExitCode::usage, "cannot read {}", samples_file.string());
}

std::string render_run_page(const std::string& title, const std::string& config_text, const RunHistory& history) {
  const std::string css = std::string(samples_css) + std::string(heat_map_css());
  HtmlPage page(title, css);
  page.add_summary(summary_of(history));
  page.add_plots(render_plots(history));
  if (!history.loads.empty()) page.add_section("Loads of experts", render_heat_maps(history.loads));
  if (!history.samples.empty()) page.add_section("Samples", render_samples(history));
  page.add_config(config_text);
  return page.text();
}

void write_run_page(const std::filesystem::path& out, const std::string& title, const std::string& config_text) {
  RunHistory history = read_run_history(out / "metrics.jsonl");
  read_samples(out / "samples.jsonl", history);
  AtomicFile page(out / "report.html");
  page.write(render_run_page(title, config_text, history));
  page.commit();
}

}  // namespace gptrain::report
