// Line plots as inline SVG in an HTML figure: axes, ticks, legend, and with Plot::full_width a second, wide drawing for
// wide screens. Colors and fonts come from plot_style_css(), in light and dark; there is no script.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain::inline report {

struct PlotPoint {
  double x = 0;
  double y = 0;  // if it is not finite, the line has a gap here
};

enum class SeriesStyle {
  line,
  faint_line,   // raw values behind a smoothed line
  dotted_line,  // values to compare with, drawn over other lines
  markers,      // dots joined by a line; hovering shows a dot's values
};

constexpr int num_plot_colors = 8;
constexpr double label_above = -8, label_under = 18;  // usual values of PlotSeries::label_below

struct PlotSeries {
  std::string label;
  SeriesStyle style = SeriesStyle::line;
  int color = 0;                  // number of a page color, below num_plot_colors
  std::vector<PlotPoint> points;  // in ascending x
  double label_below = 0;         // SVG units below each marker at which its y stands; 0: no labels
};

// A vertical line at a value of x, with a label.
struct PlotMark {
  double x = 0;
  std::string label;
};

struct Plot {
  std::string id;  // unique on the page, an HTML identifier
  std::string title;
  std::string x_label = "step";
  std::string description = {};  // text for readers who cannot see the drawing
  bool y_from_zero = false;
  bool x_doubles = false;               // logarithmic x axis with ticks at powers of two; x must be above 0
  bool y_doubles = false;               // the same for y; y_from_zero then has no effect
  bool full_width = false;              // spans the page on wide screens
  std::vector<PlotSeries> series = {};  // drawn in this order; a series without a finite point is left out
  std::vector<PlotMark> marks = {};     // the x axis is made long enough to show them
};

// Returns the plot as an HTML element <figure>, for a page with plot_style_css() and color_css() in its style sheet.
// Without a finite point it shows the text "no data yet".
std::string render_plot(const Plot& plot);
// Returns the style sheet of figures.
std::string plot_style_css();
// Returns the variables of all pages' colors, in light and dark.
std::string_view color_css();
// Returns the plot as a file of its own (image/svg+xml), with title, legend and both colors.
std::string plot_svg(const Plot& plot);

// Returns the text with &, <, >, " and ' as character references: safe in a page and in a quoted attribute.
std::string escape_html(std::string_view text);

// Returns ascending multiples of 1, 2 or 5 times a power of ten within [low, high]: at most max_count, and at least two
// if low < high. With `whole`, ticks are at least 1 apart.
std::vector<double> nice_ticks(double low, double high, size_t max_count, bool whole = false);

// Returns labels of equally spaced ticks, all with the same suffix or exponent and enough digits to differ: "0.25",
// "40k", "2e-4".
std::vector<std::string> format_ticks(const std::vector<double>& ticks);

// Returns at most max_points points that draw the same line: the lowest and the highest of each interval, and gaps.
// Returns all points if there are no more than that.
std::vector<PlotPoint> decimate(const std::vector<PlotPoint>& points, size_t max_points);

// Returns a smoothed line: means of up to max_points equal intervals, then means over neighboring intervals, equally
// many on either side, so that the line does not lag. Skips points that are not finite.
std::vector<PlotPoint> smooth(const std::vector<PlotPoint>& points, size_t max_points);

}  // namespace gptrain::report
