// Line plots as inline SVG in an HTML figure: axes, ticks, legend, a wide and a narrow drawing for desk and phone.
// Colors and type come from plot_style_css(), in light and dark; there is no script.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain {

struct PlotPoint {
  double x = 0;
  double y = 0;  // not finite: the line has a gap here
};

enum class SeriesStyle {
  line,
  faint_line,  // raw values behind a smoothed line
  markers,     // a dot for each point, with its values on hover, joined by a line
};

constexpr int num_plot_colors = 8;

struct PlotSeries {
  std::string label;
  SeriesStyle style = SeriesStyle::line;
  int color = 0;                  // below num_plot_colors: one of the colors of the page
  std::vector<PlotPoint> points;  // in ascending x
};

// A line across the plot at a value of x, with its words.
struct PlotMark {
  double x = 0;
  std::string label;
};

struct Plot {
  std::string id;  // unique on the page, an HTML identifier
  std::string title;
  std::string x_label = "step";
  std::string description = {};  // what a reader who does not see the drawing is told
  bool y_from_zero = false;
  bool x_doubles = false;               // x, above 0, by its logarithm: from a power of two to the next it is as far
  bool full_width = false;              // on wide screens this plot spans the page, on others it is like the rest
  std::vector<PlotSeries> series = {};  // drawn in this order; those without a finite point are left out
  std::vector<PlotMark> marks = {};     // the axis reaches to them
};

std::string render_plot(const Plot& plot);
std::string plot_style_css();

// The parts of the above that have a meaning of their own.

// &, <, >, " and ' as character references: safe as text and within a quoted attribute.
std::string escape_html(std::string_view text);

// Ascending multiples of 1, 2 or 5 times a power of ten within [low, high]: at most max_count, at least two where
// low < high. `whole` allows no step below 1.
std::vector<double> nice_ticks(double low, double high, size_t max_count, bool whole = false);

// The labels of equally spaced ticks, all with one suffix or exponent and the digits that tell them apart: "0.25",
// "40k", "2e-4".
std::vector<std::string> format_ticks(const std::vector<double>& ticks);

// At most max_points points that draw the same line: the lowest and the highest of each stretch, gaps included. All
// points where there are no more than that.
std::vector<PlotPoint> decimate(const std::vector<PlotPoint>& points, size_t max_points);

// The mean of up to max_points stretches of equal length, then of each stretch and its neighbors: of as many on either
// side, so that the line does not lag. Points that are not finite are skipped.
std::vector<PlotPoint> smooth(const std::vector<PlotPoint>& points, size_t max_points);

}  // namespace gptrain
