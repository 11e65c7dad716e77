#include "report/recompute_page.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>
#include <utility>

#include "base/text_parts.h"
#include "report/html_page.h"
#include "report/svg_plot.h"

namespace gptrain::inline report {
namespace {

// Returns the numbers of a stage's blocks by the activations that they save.
std::string blocks_text(const RecomputeForecast::OfStage& stage) {
  std::string text;
  const auto add = [&text](int64_t blocks, std::string_view what) {
    if (blocks > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", blocks, what);
  };
  add(stage.saving_all, "saved whole");
  add(stage.in_part, "saved in part");
  add(stage.alone, "recomputed from their input");
  add(stage.from_before, "recomputed with blocks before them");
  add(stage.offloaded, "of these offloaded to the host");
  return text.empty() ? "no blocks" : text;
}

std::string share_text(double share) { return fmt::format("{:.2f}%", 100 * share); }

// Returns a row for each run of equal stages: "  stages 3 to 27 ...".
std::string stage_rows(const std::vector<RecomputeForecast::OfStage>& stages) {
  std::string text;
  const auto words = [&](size_t stage) {
    return std::pair(share_text(stages[stage].recompute_share),
                     fmt::format("more time; {}", blocks_text(stages[stage])));
  };
  for (size_t first = 0, next = 0; first < stages.size(); first = next) {
    while (next < stages.size() && words(next) == words(first)) ++next;
    const std::string label = stages.size() == 1  ? "blocks"
                              : next == first + 1 ? fmt::format("stage {}", first)
                                                  : fmt::format("stages {} to {}", first, next - 1);
    text += text_row(label, words(first).first, words(first).second);
  }
  return text;
}

// Returns a point's row of the table. Bytes have all their digits, so that they can be used as
// memory.activation_budget.
std::string point_row(const RecomputeForecast::Point& point) {
  return fmt::format("  {:<24} {:>19} {:>10} {:>10} {:>12}\n", point.name, format_grouped(point.bytes),
                     bytes_text(point.bytes), share_text(point.recompute_share),
                     point.step_seconds > 0 ? seconds_text(point.step_seconds) : "?");
}

bool has_times(const RecomputeForecast& forecast) {
  return std::all_of(forecast.curve.begin(), forecast.curve.end(),
                     [](const RecomputeForecast::Point& point) { return point.step_seconds > 0; });
}

// Largest recompute_share that is drawn: near the least possible memory, time grows so fast that the rest would be
// invisible.
constexpr double most_drawn = 1;

bool is_drawn(const RecomputeForecast::Point& point) { return point.recompute_share <= most_drawn; }

// The unit of the axis of memory.
struct BytesUnit {
  std::string_view name;
  double bytes;

  double operator()(int64_t of) const { return static_cast<double>(of) / bytes; }
};

BytesUnit unit_of(const RecomputeForecast& forecast) {
  constexpr int64_t gib = 1 << 30;
  return forecast.curve.back().bytes >= gib ? BytesUnit{"GiB", gib} : BytesUnit{"MiB", 1 << 20};
}

PlotSeries series_of(const std::vector<RecomputeForecast::Point>& points, bool times, const BytesUnit& unit,
                     size_t color) {
  PlotSeries series{.label = points.front().name,
                    .style = SeriesStyle::markers,
                    .color = static_cast<int>(color) % num_plot_colors,
                    .points = {}};
  for (const RecomputeForecast::Point& point : points)
    if (is_drawn(point))
      series.points.push_back({unit(point.bytes), times ? point.step_seconds : 100 * point.recompute_share});
  return series;
}

// Returns marks for the budget and the device's memory, unless they are so far from the curve that the axis would be
// mostly empty.
std::vector<PlotMark> marks_of(const RecomputeForecast& forecast, const BytesUnit& unit) {
  constexpr int64_t most_times_more = 4;
  std::vector<PlotMark> marks;
  const auto add = [&](int64_t bytes, std::string_view what) {
    const bool is_near = bytes >= forecast.curve.front().bytes / most_times_more &&
                         bytes / most_times_more <= forecast.curve.back().bytes;
    if (bytes > 0 && is_near) marks.push_back({unit(bytes), fmt::format("{} {}", what, bytes_text(bytes))});
  };
  add(forecast.budget_bytes, "budget");
  add(forecast.headroom_bytes, "left on the device");
  return marks;
}

std::string curve_table(const RecomputeForecast& forecast) {
  std::string table =
      "<table>\n<tr><th>recompute</th><th class=\"number\">bytes</th><th class=\"number\">memory</th>"
      "<th class=\"number\">more time</th><th class=\"number\">step</th></tr>\n";
  for (const auto* const points : {&forecast.curve, &forecast.without_offload, &forecast.others}) {
    for (const RecomputeForecast::Point& point : *points) {
      table += fmt::format("<tr><td>{}{}</td>", escape_html(point.name), is_drawn(point) ? "" : " (not drawn)");
      for (const std::string& number :
           {format_grouped(point.bytes), bytes_text(point.bytes), share_text(point.recompute_share),
            point.step_seconds > 0 ? seconds_text(point.step_seconds) : std::string("?")})
        table += fmt::format("<td class=\"number\">{}</td>", number);
      table += "</tr>\n";
    }
  }
  return table + "</table>\n";
}

std::string page_note(const RecomputeForecast& forecast) {
  std::string text = fmt::format(
      "The shortest time for each amount of memory for activations{}; at least {} are needed. The budget is {}.",
      forecast.stages.size() > 1 ? " on the stage that needs the most" : "", bytes_text(forecast.curve.front().bytes),
      forecast.budget_bytes > 0 ? bytes_text(forecast.budget_bytes) : "all memory that the device has left");
  text += forecast.headroom_bytes > 0
              ? fmt::format(" The device has {} left for activations.", bytes_text(forecast.headroom_bytes))
              : std::string(" The rest of the step already needs more memory than the device has.");
  int64_t left_out = 0;
  for (const auto* const points : {&forecast.curve, &forecast.without_offload, &forecast.others})
    left_out += std::count_if(points->begin(), points->end(), [](const auto& point) { return !is_drawn(point); });
  if (left_out > 0)
    text += fmt::format(" {} whose recomputation more than doubles the time {} in the table only.",
                        format_counted(left_out, "point"), left_out == 1 ? "is" : "are");
  return text;
}

}  // namespace

std::string recompute_text(const RecomputeForecast& forecast) {
  std::string text = "\nrecomputation\n";
  text += text_row("budget", forecast.budget_bytes > 0 ? bytes_text(forecast.budget_bytes) : "fit",
                   forecast.budget_bytes > 0 ? "for the activations of a rank" : "all memory that the device has left");
  text += stage_rows(forecast.stages);
  text += fmt::format("\n{:<26} {:>30} {:>10} {:>12}\n", "time against memory",
                      forecast.stages.size() > 1 ? "most activations of a stage" : "activations", "more time", "step");
  for (const auto* const points : {&forecast.curve, &forecast.without_offload, &forecast.others})
    for (const RecomputeForecast::Point& point : *points) text += point_row(point);
  return text;
}

std::string recompute_page(const RecomputeForecast& forecast, const std::string& title) {
  const bool times = has_times(forecast);
  const BytesUnit unit = unit_of(forecast);
  Plot plot{.id = "curve",
            .title = times ? "Seconds of a step" : "Time of recomputation, % of everything else",
            .x_label = fmt::format("{} of activations", unit.name),
            .description = "Less memory takes more time.",
            .x_doubles = true,
            .full_width = true,
            .marks = marks_of(forecast, unit)};
  plot.series.push_back(series_of(forecast.curve, times, unit, 0));
  if (!forecast.without_offload.empty()) plot.series.push_back(series_of(forecast.without_offload, times, unit, 1));
  for (const RecomputeForecast::Point& point : forecast.others)
    plot.series.push_back(series_of({point}, times, unit, plot.series.size()));
  HtmlPage page(title);
  page.add_note(page_note(forecast));
  page.add_plots(render_plot(plot));
  page.add_section("", curve_table(forecast));
  return page.text();
}

}  // namespace gptrain::report
