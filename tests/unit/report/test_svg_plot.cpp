#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "catch.h"
#include "report/html_page.h"
#include "report/svg_plot.h"
#include "unit/not_a_number.h"

using namespace gptrain;

TEST_CASE("Ticks are round numbers within the range") {
  CHECK(nice_ticks(0, 10, 6) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(nice_ticks(2.9, 11.1, 5) == std::vector<double>{4, 6, 8, 10});
  CHECK(nice_ticks(-3, 3, 4) == std::vector<double>{-2, 0, 2});
  CHECK(nice_ticks(1, 3, 9, /*whole=*/true) == std::vector<double>{1, 2, 3});
  CHECK(nice_ticks(5, 5, 4) == std::vector<double>{5});
  for (const double scale : {1e-12, 1e-4, 1.0, 1e3, 1e15}) {
    for (const double width : {1.0, 1.7, 3.3, 9.9}) {
      const std::vector<double> ticks = nice_ticks(scale, scale * (1 + width), 5);
      CAPTURE(scale, width);
      CHECK(ticks.size() >= 2);
      CHECK(ticks.size() <= 5);
      CHECK(std::is_sorted(ticks.begin(), ticks.end()));
      CHECK(ticks.front() >= scale * (1 - 1e-6));
      CHECK(ticks.back() <= scale * (1 + width) * (1 + 1e-6));
    }
  }
}

TEST_CASE("Ticks are labelled alike, with the digits they need") {
  using Labels = std::vector<std::string>;
  CHECK(format_ticks({0, 0.5, 1}) == Labels{"0", "0.5", "1.0"});
  CHECK(format_ticks({3.2, 3.25}) == Labels{"3.20", "3.25"});
  CHECK(format_ticks({-2, 0, 2}) == Labels{"-2", "0", "2"});
  CHECK(format_ticks({2000, 4000, 6000, 8000}) == Labels{"2000", "4000", "6000", "8000"});
  CHECK(format_ticks({5000, 10000, 15000}) == Labels{"5k", "10k", "15k"});
  CHECK(format_ticks({0, 500000, 1000000}) == Labels{"0", "0.5M", "1.0M"});
  CHECK(format_ticks({0, 1e-4, 2e-4}) == Labels{"0", "1e-4", "2e-4"});
  CHECK(format_ticks({0, 5e-5, 1e-4}) == Labels{"0", "0.5e-4", "1.0e-4"});
  CHECK(format_ticks({0.001, 0.002}) == Labels{"0.001", "0.002"});
  CHECK(format_ticks({7}) == Labels{"7.0"});
}

TEST_CASE("Decimation keeps extremes, gaps and order") {
  std::vector<PlotPoint> points;
  for (int i = 0; i < 50000; ++i) points.push_back({static_cast<double>(i), std::sin(i * 0.001)});
  points[12345].y = 7;
  points[33333].y = -7;
  for (size_t i = 20000; i < 25000; ++i) points[i].y = not_a_number;
  const std::vector<PlotPoint> few = decimate(points, 1000);
  CHECK(few.size() <= 1000);
  CHECK(few.size() > 800);
  const auto has = [&](double x, double y) {
    return std::any_of(few.begin(), few.end(), [&](const PlotPoint& p) { return p.x == x && p.y == y; });
  };
  CHECK(has(12345, 7));
  CHECK(has(33333, -7));
  CHECK(std::any_of(few.begin(), few.end(), [](const PlotPoint& p) { return std::isnan(p.y); }));
  CHECK(std::is_sorted(few.begin(), few.end(), [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; }));

  points.resize(1000);
  CHECK(decimate(points, 1000).size() == 1000);
}

TEST_CASE("Smoothing does not lag, keeps a straight line, and skips gaps") {
  std::vector<PlotPoint> points;
  for (int i = 0; i < 400; ++i) points.push_back({static_cast<double>(i), 2.0 * i + (i % 2 == 0 ? 5 : -5)});
  points[100].y = not_a_number;
  const std::vector<PlotPoint> line = smooth(points, 500);
  CHECK(line.size() == 399);
  double worst = 0;
  for (size_t i = 20; i + 20 < line.size(); ++i) worst = std::max(worst, std::abs(line[i].y - 2 * line[i].x));
  CHECK(worst < 1.5);  // out of noise of 5

  const std::vector<PlotPoint> few = smooth(points, 100);
  CHECK(few.size() == 100);
  CHECK(few.front().x == Approx(1));  // the mean of 0, 1, 2 and half of the next
  CHECK(smooth({}, 100).empty());
  CHECK(smooth({{1, not_a_number}}, 100).empty());
}

TEST_CASE("A plot has its title, legend, ticks, and lines inside the frame") {
  const Plot plot{
      .id = "p",
      .title = "Loss <a>",
      .x_label = "step",
      .description = "falls & falls",
      .series = {
          {.label = "raw", .style = SeriesStyle::faint_line, .color = 0, .points = {{1, 4}, {2, not_a_number}, {3, 2}}},
          {.label = "none", .style = SeriesStyle::line, .color = 0, .points = {{1, not_a_number}}},
          {.label = "validation", .style = SeriesStyle::markers, .color = 1, .points = {{2, 3}}}}};
  const std::string html = render_plot(plot);
  CHECK(html.find("Loss &lt;a&gt;</h2>") != std::string::npos);
  CHECK(html.find(">falls &amp; falls</desc>") != std::string::npos);
  CHECK(html.find("</i>raw</span>") != std::string::npos);
  CHECK(html.find("</i>validation</span>") != std::string::npos);
  CHECK(html.find("none") == std::string::npos);
  CHECK(html.find("<title>validation 2: 3</title>") != std::string::npos);
  CHECK(html.find("class=\"wide\"") == std::string::npos);

  // A gap breaks the line: two pieces, each with its own start.
  const std::string start = "faint-line color-0\" d=\"";
  const size_t path = html.find(start);
  REQUIRE(path != std::string::npos);
  double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
  REQUIRE(std::sscanf(html.c_str() + path + start.size(), "M%lf %lfh0M%lf %lfh0\"", &x1, &y1, &x2, &y2) == 4);
  CHECK(0 < x1);
  CHECK(x1 < x2);
  CHECK(x2 < 400);
  CHECK(0 < y1);  // 4 is drawn above 2
  CHECK(y1 < y2);
  CHECK(y2 < 230);
}

TEST_CASE("A constant series is drawn on a range around it") {
  for (const double value : {0.0, 5.0, -3e9, 1e-30}) {
    const std::string html = render_plot(
        {.id = "c",
         .title = "c",
         .series = {{.label = "c", .style = SeriesStyle::line, .color = 0, .points = {{1, value}, {2, value}}}}});
    CAPTURE(value);
    CHECK(html.find("nan") == std::string::npos);
    CHECK(html.find("inf") == std::string::npos);
    CHECK(html.find("L") != std::string::npos);
  }
}

TEST_CASE("The axis reaches to marks, whose words stand where there is room") {
  Plot plot{.id = "marks", .title = "Marks"};
  plot.series = {
      {.label = "line", .style = SeriesStyle::line, .color = num_plot_colors - 1, .points = {{10, 1}, {20, 2}}}};
  plot.marks = {{11, "low <"}, {40, "high"}};
  const std::string out = render_plot(plot);
  std::vector<double> x;
  const std::string start = "class=\"mark\" x1=\"";
  for (size_t at = out.find(start); at != std::string::npos; at = out.find(start, at + 1))
    x.push_back(std::stod(out.substr(at + start.size())));
  REQUIRE(x.size() == 2);
  CHECK(x[0] < x[1]);
  CHECK(x[1] < 400);
  CHECK(out.find("<text class=\"mark-label\"") < out.find(">low &lt;<"));
  CHECK(out.find("<text class=\"mark-label left\"") < out.find(">high<"));
  // Each series color has a rule, with a light and a dark value.
  HtmlPage built("Colors");
  built.add_plots(out);
  const std::string page = built.text();
  for (int color = 0; color < num_plot_colors; ++color) {
    CHECK(page.find(fmt::format(".color-{0} {{ color: var(--color-{0}); }}", color)) != std::string::npos);
    const std::string defined = fmt::format("--color-{}: #", color);
    const size_t light = page.find(defined);
    REQUIRE(light != std::string::npos);
    CHECK(page.find(defined, light + 1) != std::string::npos);
  }
}

TEST_CASE("Where x doubles, each power of two is as far from the next") {
  Plot plot{.id = "scale", .title = "Scale"};
  plot.x_doubles = true;
  plot.series = {{.label = "speed", .style = SeriesStyle::line, .color = 2, .points = {{8, 1}, {16, 2}, {64, 4}}}};
  const std::string out = render_plot(plot);
  std::vector<double> x;
  const std::string start = "class=\"line color-2\" d=\"";
  for (size_t at = out.find(start) + start.size(); out[at] != '"'; ++at) {
    if (out[at] == 'M' || out[at] == 'L') x.push_back(std::stod(out.substr(at + 1)));
  }
  REQUIRE(x.size() == 3);
  CHECK(x[2] - x[1] == Approx(2 * (x[1] - x[0])).epsilon(0.01));
  for (const char* const tick : {">8<", ">16<", ">32<", ">64<"}) CHECK(out.find(tick) != std::string::npos);
  plot.series = {{.label = "speed",
                  .style = SeriesStyle::line,
                  .color = 2,
                  .points = {{2240, 1}, {3360, 2}}}};  // no two powers of two
  const std::string narrow = render_plot(plot);
  for (const char* const tick : {">2400<", ">3200<"}) CHECK(narrow.find(tick) != std::string::npos);
}
