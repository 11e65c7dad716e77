#include "report/published_report.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string_view>

#include "base/json.h"
#include "base/text_parts.h"
#include "planner/predict.h"
#include "report/formulas.h"
#include "report/svg_plot.h"

namespace gptrain::inline report {
namespace {

using Json = nlohmann::ordered_json;

struct FigureNames {
  std::string_view unit, axis;
};
FigureNames names_of(const PublishedSteps& steps) {
  switch (steps.figure) {
    case PublishedFigure::seconds:
      break;
    case PublishedFigure::tflops:
      return {"TFLOP/s", "TFLOP/s of each device"};
    case PublishedFigure::mfu:
      return {"% MFU", "MFU in percent"};
  }
  return {"s", "seconds of a step"};
}

double difference_of(const PublishedSteps& steps, const PublishedPoint& point) {
  return predicted_figure(steps, point) / point.published - 1;
}

struct Differences {
  double mean = 0, largest = 0;

  explicit Differences(const PublishedSteps& steps) {
    double count = 0;
    for (const PublishedPoint& point : steps.points) {
      if (!point.result) continue;
      const double size = std::abs(difference_of(steps, point));
      mean += size;
      largest = std::max(largest, size);
      ++count;
    }
    mean /= std::max(count, 1.0);
  }
};

// Returns a line through the points.
PlotSeries published_series(const PublishedSteps& steps, bool predicted) {
  PlotSeries series{.label = predicted ? "predicted" : "published",
                    .style = SeriesStyle::markers,
                    .color = predicted ? 0 : 1,
                    .points = {}};
  for (const PublishedPoint& point : steps.points)
    if (point.result)
      series.points.push_back(
          {static_cast<double>(point.gpus), predicted ? predicted_figure(steps, point) : point.published});
  std::stable_sort(series.points.begin(), series.points.end(),
                   [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
  return series;
}

}  // namespace

double predicted_figure(const PublishedSteps& steps, const PublishedPoint& point) {
  const double seconds = point.result->step_seconds;
  if (steps.figure == PublishedFigure::seconds) return seconds;
  if (steps.figure == PublishedFigure::mfu) return 100 * point.result->mfu;
  const auto flops = static_cast<double>(reference_flops_formula(point.config.model, point.config.batch.global));
  return flops / seconds / static_cast<double>(point.gpus) / 1e12;
}

std::string published_text(const PublishedSteps& steps) {
  size_t width = 5;
  for (const PublishedPoint& point : steps.points) width = std::max(width, point.name.size());
  std::string text = fmt::format("{}, on {}\n  published: {}\n\n  {:<{}} {:>8} {:>15} {:>15} {:>11} {:>10}\n",
                                 steps.title, machine_name(steps.machine), steps.source, "model", width, "devices",
                                 "published", "predicted", "difference", "peak");
  for (const PublishedPoint& point : steps.points) {
    text += fmt::format("  {:<{}} {:>8}", point.name, width, point.gpus);
    const auto figure = [&](double value) { return fmt::format("{:.4g} {}", value, names_of(steps).unit); };
    text += fmt::format(" {:>15}", figure(point.published));
    text += point.result ? fmt::format(" {:>15} {:>+10.1f}% {:>10}\n", figure(predicted_figure(steps, point)),
                                       100 * difference_of(steps, point), bytes_text(point.result->peak_bytes))
                         : fmt::format("   {}\n", point.refused);
  }
  const Differences differences(steps);
  return text +
         fmt::format("  mean difference {:.1f}%, largest {:.1f}%\n", 100 * differences.mean, 100 * differences.largest);
}

std::string published_json(const PublishedSteps& steps) {
  const Differences differences(steps);
  Json json{{"title", steps.title},
            {"source", steps.source},
            {"machine", machine_name(steps.machine)},
            {"unit", names_of(steps).unit},
            {"mean_difference", differences.mean},
            {"largest_difference", differences.largest},
            {"points", Json::array()}};
  for (const PublishedPoint& point : steps.points) {
    Json entry{{"name", point.name}, {"gpus", point.gpus}, {"published", point.published}};
    if (point.result) {
      entry["predicted"] = predicted_figure(steps, point);
      entry["difference"] = difference_of(steps, point);
      entry["step_seconds"] = point.result->step_seconds;
      entry["peak_bytes"] = point.result->peak_bytes;
    } else {
      entry["refused"] = point.refused;
    }
    json["points"].push_back(std::move(entry));
  }
  return json_text(json, 2) + "\n";
}

std::string published_svg(const PublishedSteps& steps) {
  Plot plot{.id = "published",
            .title = fmt::format("{}: {}", steps.title, names_of(steps).axis),
            .x_label = "devices",
            .description = fmt::format("{} beside predictions for {}", steps.source, machine_name(steps.machine)),
            .y_from_zero = true,
            .x_doubles = true};
  plot.series = {published_series(steps, true), published_series(steps, false)};
  return plot_svg(plot);
}

}  // namespace gptrain::report
