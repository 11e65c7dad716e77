#include "report/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <utility>

namespace gptrain::inline report {
namespace {

constexpr size_t max_points_of_line = 1000;

// Rules for the lines and texts of a drawing.
constexpr std::string_view drawing_css = R"css(
svg text { fill: var(--muted); font-size: 14px; }
.y-tick { text-anchor: end; dominant-baseline: central; }
.x-tick, .empty, .point-label { text-anchor: middle; }
.axis-label { text-anchor: end; }
.grid { stroke: var(--border); stroke-width: 1; }
.axis { stroke: var(--muted); stroke-width: 1; }
.line, .faint-line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.faint-line { stroke-width: 1; opacity: 0.35; }
.dotted-line { fill: none; stroke: var(--text); stroke-width: 1.6; stroke-dasharray: 1 6; stroke-linecap: round; }
.marker { fill: currentColor; stroke: var(--card); stroke-width: 1; }
.mark { stroke: var(--text); stroke-width: 1.2; stroke-dasharray: 5 4; }
svg text.mark-label { fill: var(--text); }
.mark-label.left { text-anchor: end; }
.color-0 { color: var(--color-0); } .color-1 { color: var(--color-1); } .color-2 { color: var(--color-2); }
.color-3 { color: var(--color-3); } .color-4 { color: var(--color-4); } .color-5 { color: var(--color-5); }
.color-6 { color: var(--color-6); } .color-7 { color: var(--color-7); }
)css";

struct Size {
  double width;
  double height;
  size_t num_x_ticks;
  size_t num_y_ticks;
};

// Sizes in SVG units. The drawing is scaled to the width it gets: the narrow one by 0.8 on a phone and by 1.3 beside
// another plot. Font sizes in the style sheet allow for that.
constexpr Size narrow_plot = {400, 230, 5, 5};
constexpr Size wide_plot = {860, 320, 9, 6};
constexpr double left_margin = 48, right_margin = 14, top_margin = 10, bottom_margin = 38;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool is_empty() const { return low > high; }
  double length() const { return high - low; }
};

bool is_drawable(const PlotPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

auto num_drawable_points(const PlotSeries& series) {
  return std::count_if(series.points.begin(), series.points.end(), is_drawable);
}

bool has_drawable_point(const PlotSeries& series) { return num_drawable_points(series) > 0; }

// Maps data to SVG units inside the axes.
struct Scale {
  Range x, y;  // ranges of logarithms along an axis that doubles
  Size size;
  bool x_doubles = false, y_doubles = false;

  double along_x(double value) const { return x_doubles ? std::log2(value) : value; }
  double along_y(double value) const { return y_doubles ? std::log2(value) : value; }
  double to_x(double value) const {
    return left_margin + (along_x(value) - x.low) / x.length() * (size.width - left_margin - right_margin);
  }
  double to_y(double value) const {
    return size.height - bottom_margin -
           (along_y(value) - y.low) / y.length() * (size.height - top_margin - bottom_margin);
  }
};

// Widens a range, so that its length can be drawn and its values are not on the frame.
void pad(Range& range, double share) {
  const double margin = range.length() * share;
  range.low -= margin;
  range.high += margin;
  const double least = std::max(1e-9 * std::max(std::abs(range.low), std::abs(range.high)), 1e-300);
  if (range.length() > least) return;
  const double around = range.low == 0 ? 1 : 0.1 * std::abs(range.low);
  range.low -= around;
  range.high += around;
}

// Returns the scale of a plot; nothing if no point can be drawn.
std::optional<Scale> fit(const Plot& plot, const Size& size) {
  Scale scale{{}, {}, size, plot.x_doubles, plot.y_doubles};
  for (const PlotSeries& series : plot.series) {
    for (const PlotPoint& point : series.points) {
      if (!is_drawable(point)) continue;
      scale.x.include(scale.along_x(point.x));
      scale.y.include(scale.along_y(point.y));
    }
  }
  if (scale.x.is_empty()) return std::nullopt;
  for (const PlotMark& mark : plot.marks) scale.x.include(scale.along_x(mark.x));
  if (scale.x.length() == 0) scale.x = {scale.x.low - 1, scale.x.high + 1};
  // Steps count from 1, but an axis that begins at 0 has rounder ticks.
  if (!plot.x_doubles && scale.x.low > 0 && scale.x.low < 0.05 * scale.x.high) scale.x.low = 0;
  const bool touches_zero = plot.y_from_zero && !plot.y_doubles && scale.y.low >= 0;
  if (touches_zero) scale.y.low = 0;
  if (plot.y_doubles) pad(scale.x, 0.05);  // room for labels of markers
  pad(scale.y, plot.y_doubles ? 0.18 : 0.06);
  if (touches_zero) scale.y.low = 0;
  return scale;
}

std::string draw_rule(const char* css_class, double x1, double y1, double x2, double y2) {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", css_class, x1, y1,
                     x2, y2);
}

std::string draw_text(const char* css_class, double x, double y, std::string_view text) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", css_class, x, y, escape_html(text));
}

using Ticks = std::pair<std::vector<double>, std::vector<std::string>>;

Ticks powers_of_two(const std::vector<double>& exponents) {
  Ticks ticks;
  for (const double exponent : exponents) {
    ticks.first.push_back(std::exp2(exponent));
    ticks.second.push_back(fmt::format("{:g}", ticks.first.back()));
  }
  return ticks;
}

// Returns an axis's ticks and their labels: on one that doubles, powers of two if it has two of them.
Ticks ticks_of(const Range& range, size_t max_count, bool doubles, bool whole) {
  std::vector<double> ticks = nice_ticks(range.low, range.high, max_count, whole);
  if (doubles && ticks.size() > 1) return powers_of_two(ticks);
  if (doubles) ticks = nice_ticks(std::exp2(range.low), std::exp2(range.high), max_count, false);
  std::vector<std::string> labels = format_ticks(ticks);
  return {std::move(ticks), std::move(labels)};
}

std::string draw_axes(const Plot& plot, const Scale& scale) {
  const double right = scale.size.width - right_margin, bottom = scale.size.height - bottom_margin;
  std::string out;
  const auto [y_ticks, y_labels] = ticks_of(scale.y, scale.size.num_y_ticks, plot.y_doubles, plot.y_doubles);
  for (size_t i = 0; i < y_ticks.size(); ++i) {
    const double y = scale.to_y(y_ticks[i]);
    out += draw_rule("grid", left_margin, y, right, y) + draw_text("y-tick", left_margin - 6, y, y_labels[i]);
  }
  const auto [x_ticks, x_labels] = ticks_of(scale.x, scale.size.num_x_ticks, plot.x_doubles, /*whole=*/true);
  for (size_t i = 0; i < x_ticks.size(); ++i) {
    const double x = scale.to_x(x_ticks[i]);
    out += draw_rule("axis", x, bottom, x, bottom + 4) + draw_text("x-tick", x, bottom + 17, x_labels[i]);
  }
  return out + draw_rule("axis", left_margin, bottom, right, bottom) +
         draw_text("axis-label", right, scale.size.height - 4, plot.x_label);
}

// Draws the marks. Labels are on the side with more room, each a row below the previous one.
std::string draw_marks(const Plot& plot, const Scale& scale) {
  constexpr double first_row = 10, row_height = 17, gap = 5;
  std::string out;
  double y = top_margin + first_row;
  for (const PlotMark& mark : plot.marks) {
    const double x = scale.to_x(mark.x);
    const bool on_the_left = 2 * x > scale.size.width;
    out += draw_rule("mark", x, top_margin, x, scale.size.height - bottom_margin) +
           draw_text(on_the_left ? "mark-label left" : "mark-label", on_the_left ? x - gap : x + gap, y, mark.label);
    y += row_height;
  }
  return out;
}

std::string_view line_class(SeriesStyle style) {
  if (style == SeriesStyle::dotted_line) return "dotted-line";
  return style == SeriesStyle::faint_line ? "faint-line" : "line";
}

std::string draw_line(const PlotSeries& series, const Scale& scale) {
  std::string path;
  bool pen_is_down = false;
  for (const PlotPoint& point : decimate(series.points, max_points_of_line)) {
    if (!is_drawable(point)) {
      pen_is_down = false;
      continue;
    }
    const double x = scale.to_x(point.x), y = scale.to_y(point.y);
    // A point between two gaps becomes a line of length 0, which round line ends show as a dot.
    path += pen_is_down ? fmt::format("L{:.1f} {:.1f}", x, y) : fmt::format("M{:.1f} {:.1f}h0", x, y);
    pen_is_down = true;
  }
  return fmt::format("<path class=\"{} color-{}\" d=\"{}\"/>", line_class(series.style), series.color, path);
}

std::string draw_markers(const PlotSeries& series, const Scale& scale) {
  std::string out;
  for (const PlotPoint& point : decimate(series.points, max_points_of_line)) {
    if (!is_drawable(point)) continue;
    out += fmt::format(
        "<circle class=\"marker color-{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{} {:.6g}: {:.6g}"
        "</title></circle>",
        series.color, scale.to_x(point.x), scale.to_y(point.y), escape_html(series.label), point.x, point.y);
    if (series.label_below != 0)
      out += draw_text("point-label", scale.to_x(point.x), scale.to_y(point.y) + series.label_below,
                       fmt::format("{:.3g}", point.y));
  }
  return out;
}

std::string draw_contents(const Plot& plot, const Size& size) {
  std::string out;
  if (const std::optional<Scale> scale = fit(plot, size)) {
    out += draw_axes(plot, *scale) + draw_marks(plot, *scale);
    for (const PlotSeries& series : plot.series) {
      if (!has_drawable_point(series)) continue;
      out += draw_line(series, *scale);
      // A line of one point would be invisible.
      if (series.style == SeriesStyle::markers || num_drawable_points(series) == 1) out += draw_markers(series, *scale);
    }
  } else {
    out += draw_text("empty", size.width / 2, size.height / 2, "no data yet");
  }
  return out;
}

std::string draw(const Plot& plot, const Size& size, const char* variant) {
  return fmt::format(
      "<svg class=\"{2}\" viewBox=\"0 0 {3} {4}\" role=\"img\" aria-labelledby=\"{0}-{2}-title {0}-{2}-desc\">"
      "<title id=\"{0}-{2}-title\">{1}</title><desc id=\"{0}-{2}-desc\">{5}</desc>{6}</svg>\n",
      plot.id, escape_html(plot.title), variant, size.width, size.height, escape_html(plot.description),
      draw_contents(plot, size));
}

std::string swatch_class(const PlotSeries& series) {
  if (series.style == SeriesStyle::dotted_line) return "dotted";
  return fmt::format("{}color-{}", series.style == SeriesStyle::faint_line ? "faint " : "", series.color);
}

// Returns the legend; empty for a single line, which the title names.
std::string draw_legend(const Plot& plot) {
  if (std::count_if(plot.series.begin(), plot.series.end(), has_drawable_point) < 2) return {};
  std::string out = "<span class=\"legend\">";
  for (const PlotSeries& series : plot.series) {
    if (!has_drawable_point(series)) continue;
    out += fmt::format("<span class=\"key\"><i class=\"swatch {}\"></i>{}</span>", swatch_class(series),
                       escape_html(series.label));
  }
  return out + "</span>";
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> nice_ticks(double low, double high, size_t max_count, bool whole) {
  if (!(low < high)) return {low};
  double power = std::pow(10, std::floor(std::log10((high - low) / static_cast<double>(max_count))));
  if (whole) power = std::max(power, 1.0);
  for (;; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double step = factor * power;
      // A tick just outside the range by rounding still belongs to it.
      const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
      if (last - first + 1 > static_cast<double>(max_count)) continue;
      std::vector<double> ticks;
      for (double k = first; k <= last; ++k) ticks.push_back(k * step);
      return ticks;
    }
  }
}

std::vector<std::string> format_ticks(const std::vector<double>& ticks) {
  static constexpr std::array<const char*, 5> suffixes = {"", "k", "M", "G", "T"};
  const double largest = std::max(std::abs(ticks.front()), std::abs(ticks.back()));
  double step = ticks.size() > 1 ? ticks[1] - ticks[0] : largest / 10;
  double unit = 1;
  std::string suffix;
  if (largest > 0 && (largest < 1e-3 || largest >= 1e15)) {
    const double exponent = std::floor(std::log10(largest) + 1e-9);
    unit = std::pow(10, exponent);
    suffix = fmt::format("e{:.0f}", exponent);
  } else if (largest >= 1e4) {
    size_t thousands = 0;
    for (; largest >= 1000 * unit && thousands + 1 < suffixes.size(); ++thousands) unit *= 1000;
    suffix = suffixes[thousands];
  }
  step /= unit;
  const double decimals = step > 0 ? std::clamp(std::ceil(-std::log10(step) - 1e-9), 0.0, 9.0) : 0;
  std::vector<std::string> labels;
  for (const double tick : ticks) {
    // Zero has no unit; k * step may differ from it by a rounding error.
    labels.push_back(std::abs(tick / unit) < 1e-9 * step
                         ? "0"
                         : fmt::format("{:.{}f}{}", tick / unit, static_cast<int>(decimals), suffix));
  }
  return labels;
}

std::vector<PlotPoint> decimate(const std::vector<PlotPoint>& points, size_t max_points) {
  if (points.size() <= max_points) return points;
  const size_t num_stretches = std::max<size_t>(max_points / 2, 1);
  std::vector<PlotPoint> out;
  out.reserve(2 * num_stretches);
  for (size_t stretch = 0; stretch < num_stretches; ++stretch) {
    const size_t begin = stretch * points.size() / num_stretches, end = (stretch + 1) * points.size() / num_stretches;
    size_t lowest = end, highest = end;
    for (size_t i = begin; i < end; ++i) {
      if (!is_drawable(points[i])) continue;
      if (lowest == end || points[i].y < points[lowest].y) lowest = i;
      if (highest == end || points[i].y > points[highest].y) highest = i;
    }
    if (lowest == end) {
      out.push_back(points[begin]);  // the interval has no finite point
      continue;
    }
    out.push_back(points[std::min(lowest, highest)]);
    if (lowest != highest) out.push_back(points[std::max(lowest, highest)]);
  }
  return out;
}

std::vector<PlotPoint> smooth(const std::vector<PlotPoint>& points, size_t max_points) {
  std::vector<PlotPoint> finite;
  std::copy_if(points.begin(), points.end(), std::back_inserter(finite), is_drawable);
  const size_t num_stretches = std::min(finite.size(), max_points);
  std::vector<PlotPoint> means;
  for (size_t stretch = 0; stretch < num_stretches; ++stretch) {
    const size_t begin = stretch * finite.size() / num_stretches, end = (stretch + 1) * finite.size() / num_stretches;
    PlotPoint sum;
    for (size_t i = begin; i < end; ++i) sum = {sum.x + finite[i].x, sum.y + finite[i].y};
    const auto count = static_cast<double>(end - begin);
    means.push_back({sum.x / count, sum.y / count});
  }
  const size_t widest = std::max<size_t>(num_stretches / 50, 1);
  std::vector<PlotPoint> out = means;
  for (size_t i = 0; i < means.size(); ++i) {
    const size_t reach = std::min({widest, i, means.size() - 1 - i});
    double sum = 0;
    for (size_t j = i - reach; j <= i + reach; ++j) sum += means[j].y;
    out[i].y = sum / static_cast<double>(2 * reach + 1);
  }
  return out;
}

std::string render_plot(const Plot& plot) {
  std::string out =
      fmt::format("<figure{}>\n<figcaption><h2>{}</h2>{}</figcaption>\n",
                  plot.full_width ? " class=\"full-width\"" : "", escape_html(plot.title), draw_legend(plot));
  out += draw(plot, narrow_plot, "narrow");
  if (plot.full_width) out += draw(plot, wide_plot, "wide");
  return out + "</figure>\n";
}

std::string plot_svg(const Plot& plot) {
  constexpr double title_y = 26, legend_y = 48, head = 60, swatch = 18, gap = 20;
  constexpr double width_of_letter = 7.2;  // about that of the legend's font
  std::string legend;
  double x = left_margin;
  for (const PlotSeries& series : plot.series) {
    if (!has_drawable_point(series)) continue;
    legend += fmt::format("<path class=\"{} color-{}\" d=\"M{:.1f} {:.1f}h{:.1f}\"/>", line_class(series.style),
                          series.color, x, legend_y - 4, swatch) +
              draw_text("legend", x + swatch + 6, legend_y, series.label);
    x += swatch + 6 + width_of_letter * static_cast<double>(series.label.size()) + gap;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\">\n"
      "<title>{2}</title><desc>{3}</desc>\n<style>{4}{5}"
      "svg {{ font-family: system-ui, \"Segoe UI\", Roboto, \"DejaVu Sans\", sans-serif; }}\n"
      "svg text {{ font-size: 13px; }} svg .title {{ font-size: 16px; font-weight: 600; fill: var(--text); }}\n"
      ".card {{ fill: var(--card); stroke: var(--border); }}\n</style>\n"
      "<rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"{6}\" height=\"{7}\" rx=\"10\"/>\n{8}{9}\n"
      "<g transform=\"translate(0 {10})\">{11}</g>\n</svg>\n",
      wide_plot.width, head + wide_plot.height + 6, escape_html(plot.title), escape_html(plot.description), color_css(),
      drawing_css, wide_plot.width - 1, head + wide_plot.height + 5,
      draw_text("title", left_margin, title_y, plot.title), legend, head, draw_contents(plot, wide_plot));
}

std::string_view color_css() {
  return R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --text: #1b2330; --muted: #5a6678; --border: #dfe3ea;
  --color-0: #2563eb; --color-1: #c2410c; --color-2: #0f766e; --color-3: #9333ea; --color-4: #ca8a04; --color-5: #db2777;
  --color-6: #4d7c0f; --color-7: #475569; }
@media (prefers-color-scheme: dark) {
  :root { --page: #10141b; --card: #181e28; --text: #e4e9f1; --muted: #9ba8ba; --border: #2b3442;
    --color-0: #6ea8fe; --color-1: #fb9a4b; --color-2: #4fd1b5; --color-3: #c4a1ff; --color-4: #f2d24b; --color-5: #ff8fc7;
    --color-6: #a3d955; --color-7: #b8c2d0; }
}
)css";
}

std::string plot_style_css() {
  return R"css(
figure { margin: 0; padding: 14px 16px 8px; background: var(--card); border: 1px solid var(--border); border-radius: 10px; }
figcaption { display: flex; flex-wrap: wrap; align-items: baseline; gap: 2px 16px; margin-bottom: 6px; }
figcaption h2 { font-size: 15px; margin: 0 auto 0 0; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; }
.key { font-size: 13px; color: var(--muted); white-space: nowrap; }
.swatch { display: inline-block; width: 16px; height: 3px; margin-right: 6px; border-radius: 2px; vertical-align: middle; background: currentColor; }
.swatch.faint { opacity: 0.35; }
.swatch.dotted { height: 0; border-top: 2px dotted var(--text); background: none; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
)css" + std::string(drawing_css) +
         R"css(svg.wide { display: none; }
@media (min-width: 820px) {
  .full-width { grid-column: 1 / -1; }
  .full-width .narrow { display: none; }
  svg.wide { display: block; }
  svg.narrow text { font-size: 10px; }
  svg.wide text { font-size: 11.5px; }
}
)css";
}

}  // namespace gptrain::report
