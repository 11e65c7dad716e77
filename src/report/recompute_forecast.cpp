#include "report/recompute_forecast.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "report/html_page.h"
#include "report/svg_plot.h"
#include "report/text_parts.h"

namespace gptrain {
namespace {

// "3 blocks kept, 2 run again from their input".
std::string blocks_text(const RecomputeForecast::OfStage& stage) {
  std::string text;
  const auto add = [&text](int64_t blocks, std::string_view what) {
    if (blocks > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", blocks, what);
  };
  add(stage.kept, "kept whole");
  add(stage.in_part, "in part");
  add(stage.alone, "run again from their input");
  add(stage.from_before, "with blocks before them");
  add(stage.offloaded, "of these on the host meanwhile");
  return text.empty() ? "no blocks" : text;
}

std::string share_text(double share) { return fmt::format("{:.2f}%", 100 * share); }

// "  stages 3 to 27 ...": those that are alike are one line.
std::string stage_rows(const std::vector<RecomputeForecast::OfStage>& stages) {
  std::string text;
  const auto words = [&](size_t stage) {
    return std::pair(share_text(stages[stage].again_share), fmt::format("more time; {}", blocks_text(stages[stage])));
  };
  for (size_t first = 0, next = 0; first < stages.size(); first = next) {
    while (next < stages.size() && words(next) == words(first)) ++next;
    const std::string label = stages.size() == 1   ? "blocks"
                              : next == first + 1 ? fmt::format("stage {}", first)
                                                  : fmt::format("stages {} to {}", first, next - 1);
    text += text_row(label, words(first).first, words(first).second);
  }
  return text;
}

// Bytes to the last digit: as a budget they lead to that row.
std::string point_row(const RecomputeForecast::Point& point) {
  return fmt::format("  {:<24} {:>19} {:>10} {:>10} {:>12}\n", point.name, format_grouped(point.bytes),
                     bytes_text(point.bytes), share_text(point.again_share),
                     point.step_seconds > 0 ? seconds_text(point.step_seconds) : "?");
}

bool has_times(const RecomputeForecast& forecast) {
  return std::all_of(forecast.curve.begin(), forecast.curve.end(),
                     [](const RecomputeForecast::Point& point) { return point.step_seconds > 0; });
}

// Near the least memory there is, time grows so fast that nothing else would be seen.
constexpr double most_drawn = 1;

PlotSeries series_of(const std::string& label, const std::vector<RecomputeForecast::Point>& points, bool times,
                     int color) {
  PlotSeries series{.label = label, .style = SeriesStyle::markers, .color = color, .points = {}};
  for (const RecomputeForecast::Point& point : points) {
    if (point.again_share > most_drawn) continue;
    const double y = times ? point.step_seconds : 100 * point.again_share;
    series.points.push_back({static_cast<double>(point.bytes) / (1 << 20), y});
  }
  return series;
}

}  // namespace

std::string recompute_text(const RecomputeForecast& forecast) {
  std::string text = "\nrecomputation\n";
  text += text_row("budget", forecast.budget_bytes > 0 ? bytes_text(forecast.budget_bytes) : "fit",
                   forecast.budget_bytes > 0 ? "for the activations of a rank" : "what the device leaves");
  text += stage_rows(forecast.stages);
  text += fmt::format("\n{:<26} {:>30} {:>10} {:>12}\n", "time against memory",
                      forecast.stages.size() > 1 ? "most activations of a stage" : "activations", "more time", "step");
  for (const auto* const points : {&forecast.curve, &forecast.without_offload, &forecast.others})
    for (const RecomputeForecast::Point& point : *points) text += point_row(point);
  return text;
}

std::string recompute_page(const RecomputeForecast& forecast, const std::string& title) {
  const bool times = has_times(forecast);
  Plot plot{.id = "curve",
            .title = times ? "Seconds of a step" : "Time of what is run again, % of the rest",
            .x_label = "MiB of activations",
            .description = "Less memory takes more time.",
            .x_doubles = true,
            .full_width = true};
  plot.series.push_back(series_of(forecast.curve.front().name, forecast.curve, times, 0));
  std::vector<std::string> names;
  if (!forecast.without_offload.empty()) {
    names.push_back(forecast.without_offload.front().name);
    plot.series.push_back(series_of(names.front(), forecast.without_offload, times, 1));
  }
  for (const RecomputeForecast::Point& point : forecast.others) {
    if (std::find(names.begin(), names.end(), point.name) != names.end()) continue;
    names.push_back(point.name);
    plot.series.push_back(series_of(point.name, {point}, times, static_cast<int>(names.size() % 3)));
  }
  const std::string body =
      fmt::format("<p class=\"note\">The least time for the memory of the activations{}, at least {}.</p>\n",
                  forecast.stages.size() > 1 ? " of the stage that takes the most" : "",
                  bytes_text(forecast.curve.front().bytes));
  return html_page(title, "", body + "<div class=\"plots\">\n" + render_plot(plot) + "</div>\n");
}

}  // namespace gptrain
