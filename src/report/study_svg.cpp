#include "report/study_svg.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text_parts.h"
#include "report/svg_plot.h"

namespace gptrain::inline report {
namespace {

double drawn_number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value <= 0)
    throw Error(ExitCode::usage, "--svg draws values above 0 only, and {} is not", text);
  return value;
}

std::vector<std::string> values_on(const Study& study, size_t axis) {
  std::vector<std::string> values;
  for (const StudyPoint& point : study.points)
    if (std::find(values.begin(), values.end(), point.values[axis]) == values.end())
      values.push_back(point.values[axis]);
  return values;
}

// Returns the points over the last axis whose first value is `name`; all points if there is one axis.
PlotSeries study_series(const Study& study, const std::string& name, std::string label, int color,
                        const std::function<double(const LayoutResult&)>& y) {
  PlotSeries series{.label = std::move(label), .style = SeriesStyle::markers, .color = color, .points = {}};
  for (const StudyPoint& point : study.points) {
    const double x = drawn_number(point.values.back());
    if (point.result && (study.axes.size() == 1 || point.values.front() == name))
      series.points.push_back({x, y(*point.result)});
  }
  std::stable_sort(series.points.begin(), series.points.end(),
                   [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
  return series;
}

// Returns the line on which the first point's speed grows with the devices.
PlotSeries ideal_line(const PlotSeries& series) {
  PlotSeries ideal{.label = "in proportion", .style = SeriesStyle::dotted_line, .color = 7, .points = {}};
  for (const PlotPoint& point : series.points)
    ideal.points.push_back({point.x, series.points.front().y * point.x / series.points.front().x});
  return ideal;
}

Plot plot_of(const Study& study, std::string y_name, std::string x_label) {
  return {.id = "study",
          .title = fmt::format("{}: {}", study.title, y_name),
          .x_label = std::move(x_label),
          .description = fmt::format("{}, on {}", study.title, study.machine),
          .y_from_zero = true};
}

Plot scale_plot(const Study& study) {
  Plot plot = plot_of(study, "model PFLOP/s", "devices");
  plot.x_doubles = plot.y_doubles = true;
  const auto pflops = [](const LayoutResult& result) { return result.model_flops / 1e15; };
  plot.series.push_back(study_series(study, "weak", "weak scaling", 0, pflops));
  plot.series.push_back(study_series(study, "strong", "strong scaling", 1, pflops));
  plot.series.front().label_below = label_above;
  plot.series.back().label_below = label_under;
  if (!plot.series.front().points.empty()) plot.series.push_back(ideal_line(plot.series.front()));
  return plot;
}

Plot speed_plot(const Study& study) {
  const bool links = study.kind == Study::Kind::links;
  Plot plot = plot_of(study, "tokens/s", links ? "NICs of a node" : study.axes.back());
  const std::vector<std::string> names = study.axes.size() > 1 ? values_on(study, 0) : std::vector<std::string>{""};
  for (size_t i = 0; i < names.size(); ++i)
    plot.series.push_back(study_series(study, names[i], links ? names[i] + " Gbit/s each" : study.axes.front(),
                                       static_cast<int>(i) % num_plot_colors,
                                       [](const LayoutResult& result) { return result.tokens_per_second; }));
  return plot;
}

constexpr double cell_width = 96, cell_height = 52, map_top = 106, widest_letter = 8;

std::string text_at(double x, double y, std::string_view anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escape_html(text));
}

// Returns the map's cell, with peak memory above the step's time: the stronger its color, the more memory; a dashed
// frame if it does not fit.
std::string cell_of(const Study& study, const StudyPoint& point, double x, double y, double most) {
  const double middle = x + cell_width / 2, line = y + cell_height / 2 + 4;
  if (!point.result) return text_at(middle, line, "middle", "-");
  const bool fits = study.fits(point);
  return fmt::format(
             "<rect class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" "
             "fill-opacity=\"{:.2f}\"/>\n",
             fits ? "fits" : "large", x + 2, y + 2, cell_width - 4, cell_height - 4,
             0.6 * static_cast<double>(point.result->peak_bytes) / most) +
         text_at(middle, line - 9, "middle", bytes_text(point.result->peak_bytes)) +
         text_at(middle, line + 9, "middle", seconds_text(point.result->step_seconds));
}

std::string map_caption(const Study& study) {
  const bool fills_hosts = std::any_of(study.points.begin(), study.points.end(), [&](const StudyPoint& point) {
    return point.result && study.lacks_on_host(point) > 0;
  });
  return fmt::format("dashed: more than the {} of a device{}", bytes_text(study.device_bytes),
                     fills_hosts ? ", or than its host has" : "");
}

// Returns where the map begins, right of its rows' names.
double left_of_map(const Study& study, const std::vector<std::string>& rows) {
  size_t letters = study.axes[0].size();
  for (const std::string& row : rows) letters = std::max(letters, row.size());
  return 24 + widest_letter * static_cast<double>(letters);
}

std::string memory_map(const Study& study) {
  const std::vector<std::string> rows = values_on(study, 0), columns = values_on(study, 1);
  const double map_left = left_of_map(study, rows);
  double most = 1;
  for (const StudyPoint& point : study.points)
    if (study.fits(point)) most = std::max(most, static_cast<double>(point.result->peak_bytes));
  std::string body;
  for (size_t j = 0; j < columns.size(); ++j)
    body += text_at(map_left + (static_cast<double>(j) + 0.5) * cell_width, map_top - 10, "middle", columns[j]);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double y = map_top + static_cast<double>(i) * cell_height;
    body += text_at(map_left - 12, y + cell_height / 2 + 4, "end", rows[i]);
    for (size_t j = 0; j < columns.size(); ++j)
      body +=
          cell_of(study, study.points[i * columns.size() + j], map_left + static_cast<double>(j) * cell_width, y, most);
  }
  const double width = map_left + static_cast<double>(columns.size()) * cell_width + 20;
  const double height = map_top + static_cast<double>(rows.size()) * cell_height + 20;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
             "{1:.0f}\" "
             "role=\"img\">\n<title>{2}</title>\n<style>{3}"
             "svg text {{ fill: var(--text); font: 13px system-ui, \"Segoe UI\", Roboto, \"DejaVu Sans\", sans-serif; "
             "}}\n"
             ".card {{ fill: var(--card); stroke: var(--border); }} .fits {{ fill: var(--color-0); }}\n"
             ".large {{ fill: none; stroke: var(--color-1); stroke-dasharray: 5 4; stroke-width: 1.5; }}\n</style>\n"
             "<rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"{4:.0f}\" height=\"{5:.0f}\" rx=\"10\"/>\n",
             width, height, escape_html(study.title), color_css(), width - 1, height - 1) +
         text_at(20, 26, "start", "Peak memory and step, " + study.title) +
         text_at(20, 46, "start", map_caption(study)) + text_at(map_left, 74, "start", study.axes[1]) +
         text_at(map_left - 12, map_top - 10, "end", study.axes[0]) + body + "</svg>\n";
}

}  // namespace

std::string study_svg(const Study& study) {
  if (study.kind == Study::Kind::sweep && study.axes.size() == 2) return memory_map(study);
  return plot_svg(study.kind == Study::Kind::scale ? scale_plot(study) : speed_plot(study));
}

}  // namespace gptrain::report
