#include "report/plan_page.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <optional>

#include "base/text_parts.h"
#include "base/units.h"
#include "config/faults.h"
#include "report/html_page.h"
#include "report/layout_report.h"
#include "report/svg_plot.h"

namespace gptrain::inline report {
namespace {

constexpr std::string_view plan_css = R"css(
.bar { display: flex; height: 12px; min-width: 90px; border-radius: 3px; overflow: hidden; background: var(--border); }
.bar i { display: block; height: 100%; }
.ops { background: var(--color-0); } .exposed { background: var(--color-1); } .bubble { background: var(--color-2); }
.colors b { display: inline-block; width: 12px; height: 12px; margin: 0 5px 0 12px; border-radius: 3px; vertical-align: -1px; }
.maps { display: flex; flex-wrap: wrap; gap: 16px 40px; }
.heat { width: auto; } .heat th { vertical-align: middle; } .heat td { white-space: nowrap; text-align: center; min-width: 64px; padding: 8px 6px; border: 2px solid var(--card); position: relative; }
.heat td i { position: absolute; inset: 0; background: var(--color-0); }
.heat.memory td i { background: var(--color-2); }
.heat td.left { border-left: 3px solid var(--text); } .heat td.above { border-top: 3px solid var(--text); }
.heat td span { position: relative; }
.heat td.large { outline: 2px dashed var(--color-1); outline-offset: -4px; }
.large { color: var(--color-1); }
.heat td.large span { color: var(--text); }
.heat th + th { text-align: center; }
@media (max-width: 480px) {
section { padding: 10px; } table { font-size: 13px; } .heat td { min-width: 52px; padding: 8px 3px; } .parts, .colors { display: none; } td { overflow-wrap: anywhere; }
.best, .best tbody, .points, .points tbody { display: block; }
.points tr { display: grid; grid-template-columns: repeat(4, 1fr); border-top: 1px solid var(--border); padding: 2px 0; }
.points th, .points td { border-top: 0; padding: 3px 2px; text-align: left; overflow-wrap: anywhere; }
.points td[colspan], .points .settings { grid-column: 1 / -1; }
.best tr { display: grid; grid-template-columns: 22px 1fr 1fr 1.1fr; border-top: 1px solid var(--border); padding: 2px 0; }
.best.cost tr { grid-template-columns: 22px 1.2fr 1fr 1.1fr 1fr 1.5fr; }
.best th, .best td { border-top: 0; padding: 3px 2px; }
.best tr :last-child { grid-column: 2 / -1; }
}
)css";

std::string number_cell(const std::string& text) {
  return fmt::format("<td class=\"number\">{}</td>", escape_html(text));
}

std::string cell(std::string_view tag, const std::string& text) {
  return fmt::format("<{0}>{1}</{0}>", tag, escape_html(text));
}

// Returns a bar of the step's parts, whose length is the step's share of `longest`.
std::string bar(const LayoutResult& result, double longest) {
  double exposed = 0;
  for (const double seconds : result.exposed_seconds) exposed += seconds;
  const double bubble = std::max(result.bubble_seconds, 0.0);
  const double ops = std::max(result.step_seconds - exposed - bubble, 0.0);
  const auto part = [&](std::string_view name, double seconds) {
    return fmt::format("<i class=\"{}\" style=\"width:{:.2f}%\" title=\"{}: {}\"></i>", name, 100 * seconds / longest,
                       name, seconds_text(seconds));
  };
  return fmt::format("<div class=\"bar\">{}{}{}</div>", part("ops", ops), part("exposed", exposed),
                     part("bubble", bubble));
}

std::string best_table(const LayoutSearch& search) {
  double longest = 0;
  for (const LayoutResult& result : search.best) longest = std::max(longest, result.step_seconds);
  const bool shows_devices = search.objective == "cost";
  std::string out = fmt::format(
      "<p class=\"note colors\">A step's time: <b class=\"ops\"></b>ops <b class=\"exposed\"></b>communication not "
      "hidden by ops <b class=\"bubble\"></b>waiting for other stages.</p>\n"
      "<p class=\"note\">~ marks an estimate, &gt; a lower bound.</p>\n"
      "<table class=\"best{}\">\n<tr><th></th><th class=\"number\">step</th><th class=\"parts\"></th>"
      "<th class=\"number\">MFU</th><th class=\"number\">peak</th>",
      shows_devices ? " cost" : "");
  if (shows_devices) out += "<th class=\"number\">devices</th><th class=\"number\">device-hours</th>";
  out += "<th>layout, or its difference from the first</th></tr>\n";
  for (size_t i = 0; i < search.best.size(); ++i) {
    const LayoutResult& result = search.best[i];
    out += "<tr>";
    out += number_cell(fmt::format("{}", i + 1));
    out += number_cell(fmt::format("{}{:.4g} s", result.is_exact ? "" : "~", result.step_seconds));
    out += fmt::format("<td class=\"parts\">{}</td>", bar(result, longest));
    out += number_cell(result.is_exact ? fmt::format("{:.1f}%", 100 * result.mfu) : "");
    out += number_cell(peak_text(result));
    if (shows_devices) {
      out += number_cell(fmt::format("{}", result.layout.world_size()));
      out += number_cell(result.is_exact ? device_hours_text(result) : "");
    }
    out +=
        cell("td", i == 0 ? layout_text(result.layout) : layout_difference(search.best.front().layout, result.layout));
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

std::string lost_table(const LayoutSearch& search) {
  std::string out = "<table>\n<tr><th>key</th><th>value</th><th>best layout with that value</th></tr>\n";
  for (const LostClass& lost : search.lost)
    out += fmt::format("<tr><td>{}</td><td>{}</td><td{}>{}</td></tr>\n", escape_html(lost.key), escape_html(lost.value),
                       lost.fits ? "" : " class=\"large\"", escape_html(loss_text(search, lost)));
  return out + "</table>\n";
}

std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> values_of(const Study& study, size_t axis) {
  std::vector<std::string> values;
  for (const StudyPoint& point : study.points)
    if (std::find(values.begin(), values.end(), point.values[axis]) == values.end())
      values.push_back(point.values[axis]);
  return values;
}

// A map of a sweep of two keys.
struct HeatMap {
  std::string_view css_class, note;
  std::function<double(const LayoutResult&)> value;
  std::function<std::string(const LayoutResult&)> text;
};

// Returns the bytes that a point lacks, behind a comma; empty if it fits.
std::string shortage_of(const Study& study, const StudyPoint& point) {
  return study.fits(point) ? "" : ", " + missing_text(study, point);
}

// Returns a table of the values, from the palest color for the least to the strongest for the most. A line is drawn
// between points that fit the device and points that do not.
std::string heat_map(const Study& study, const HeatMap& map) {
  const std::vector<std::string> rows = values_of(study, 0), columns = values_of(study, 1);
  double least = INFINITY, most = 0;
  for (const StudyPoint& point : study.points) {
    if (!point.result) continue;
    least = std::min(least, map.value(*point.result));
    most = std::max(most, map.value(*point.result));
  }
  const auto opacity = [&](double value) {
    return 0.06 + 0.54 * (value - least) / std::max(most - least, 1e-9 * most);
  };
  const auto fits = [&](size_t row, size_t column) { return study.fits(study.points[row * columns.size() + column]); };
  std::string out = fmt::format("<div><p class=\"note\">{}</p>\n<table class=\"heat {}\">\n<tr><th>{} \\ {}</th>",
                                map.note, map.css_class, escape_html(study.axes[0]), escape_html(study.axes[1]));
  for (const std::string& column : columns) out += cell("th", column);
  out += "</tr>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    out += "<tr>";
    out += cell("th", rows[i]);
    for (size_t j = 0; j < columns.size(); ++j) {
      const StudyPoint& point = study.points[i * columns.size() + j];
      if (!point.result) {
        out += fmt::format("<td title=\"{}\">-</td>", escape_html(point.refused));
        continue;
      }
      std::string classes = study.fits(point) ? "" : "large";
      if (j > 0 && fits(i, j) != fits(i, j - 1)) classes += " left";
      if (i > 0 && fits(i, j) != fits(i - 1, j)) classes += " above";
      out += fmt::format(
          "<td class=\"{}\" title=\"step {}, peak {}{}\"><i style=\"opacity:{:.2f}\"></i><span>{}</span></td>", classes,
          seconds_text(point.result->step_seconds), bytes_text(point.result->peak_bytes), shortage_of(study, point),
          opacity(map.value(*point.result)), map.text(*point.result));
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string heat_maps(const Study& study) {
  return fmt::format(
             "<p class=\"note\">A stronger color means more. Beyond the line and in dashed frames are points that need "
             "more than the {} of a device, or than its node's host or drives have.</p>\n<div class=\"maps\">\n",
             bytes_text(study.device_bytes)) +
         heat_map(study, {.css_class = "speed",
                          .note = "Tokens per second",
                          .value = [](const LayoutResult& result) { return result.tokens_per_second; },
                          .text = [](const LayoutResult& result) { return format_count(result.tokens_per_second); }}) +
         heat_map(study, {.css_class = "memory",
                          .note = "Peak memory of a device",
                          .value = [](const LayoutResult& result) { return static_cast<double>(result.peak_bytes); },
                          .text = [](const LayoutResult& result) { return bytes_text(result.peak_bytes); }}) +
         "</div>\n";
}

// Returns the line of a scaling study that perfect scaling from its first point would give.
PlotSeries ideal_of(const PlotSeries& series, double power, const std::string& label) {
  PlotSeries ideal{.label = label, .style = SeriesStyle::dotted_line, .color = series.color, .points = series.points};
  const PlotPoint first = series.points.front();
  for (PlotPoint& point : ideal.points) point.y = first.y * std::pow(point.x / first.x, power);
  return ideal;
}

// Returns a plot over the last axis, with one line for each of the first three values of the first axis if there are
// two.
Plot lines(const Study& study, const char* id, const std::string& title, bool doubles,
           const std::function<double(const LayoutResult&)>& y) {
  const size_t along = study.axes.size() - 1;
  Plot plot{.id = id,
            .title = title,
            .x_label = study.axes[along],
            .description = title,
            .y_from_zero = true,
            .x_doubles = doubles,
            .y_doubles = doubles};
  const std::vector<std::string> names = study.axes.size() > 1 ? values_of(study, 0) : std::vector<std::string>{""};
  for (size_t i = 0; i < names.size() && i < 3; ++i) {
    PlotSeries series{names[i].empty() ? title
                      : doubles        ? names[i] + " " + study.axes[0]
                                       : study.axes[0] + " " + names[i],
                      SeriesStyle::markers,
                      static_cast<int>(i),
                      {}};
    for (const StudyPoint& point : study.points) {
      const std::optional<double> x = number_of(point.values[along]);
      if (x && point.result && (names[i].empty() || point.values[0] == names[i]))
        series.points.push_back({*x, y(*point.result)});
    }
    std::stable_sort(series.points.begin(), series.points.end(),
                     [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
    // Lines may lie on one another: the first has its labels below, the second above.
    if (doubles) series.label_below = i == 0 ? label_under : label_above;
    plot.series.push_back(std::move(series));
  }
  return plot;
}

// Adds the lines of perfect scaling. Speed grows with the devices; a step takes less with a fixed batch only.
void add_ideal(Plot& plot, bool of_speed) {
  std::vector<PlotSeries> ideal;
  for (PlotSeries& series : plot.series) {
    if (series.points.empty()) continue;
    const bool is_weak = series.label.starts_with("weak");
    ideal.push_back(ideal_of(series, of_speed ? 1 : is_weak ? 0 : -1, "ideal " + series.label));
  }
  plot.series.insert(plot.series.end(), ideal.begin(), ideal.end());
}

// Returns plots of speed and step; empty if the last axis has values that are no numbers.
std::string plots(const Study& study) {
  if (!number_of(study.points.front().values.back())) return "";
  const bool scales = study.kind == Study::Kind::scale;
  Plot speed =
      lines(study, "speed", scales ? "Model PFLOP/s of all devices" : "Tokens/s", scales,
            [&](const LayoutResult& result) { return scales ? result.model_flops / 1e15 : result.tokens_per_second; });
  Plot step =
      lines(study, "step", "Seconds of a step", scales, [](const LayoutResult& result) { return result.step_seconds; });
  if (scales) {
    add_ideal(speed, true);
    add_ideal(step, false);
  }
  return render_plot(speed) + render_plot(step);
}

// Returns two bars for each method: its peak memory as a share of the largest, and its step as a share of the longest.
std::string method_bars(const Study& study) {
  int64_t largest = 1;
  double longest = 0;
  for (const StudyPoint& point : study.points) {
    if (!point.result) continue;
    largest = std::max(largest, point.result->peak_bytes);
    longest = std::max(longest, point.result->step_seconds);
  }
  const auto bar_of = [](std::string_view name, double share, const std::string& text) {
    return fmt::format("<td class=\"parts\"><div class=\"bar\"><i class=\"{}\" style=\"width:{:.2f}%\"></i></div></td>",
                       name, 100 * share) +
           number_cell(text);
  };
  std::string out = fmt::format(
      "<p class=\"note colors\"><b class=\"ops\"></b>peak memory <b class=\"exposed\"></b>peak memory of methods that "
      "do "
      "not fit a device's {}, its host or drives <b class=\"bubble\"></b>time of a step.</p>\n<table>\n",
      bytes_text(study.device_bytes));
  for (const StudyPoint& point : study.points) {
    if (!point.result) continue;
    const LayoutResult& result = *point.result;
    out +=
        "<tr>" + cell("td", point.values.front()) +
        bar_of(study.fits(point) ? "ops" : "exposed",
               static_cast<double>(result.peak_bytes) / static_cast<double>(largest), bytes_text(result.peak_bytes)) +
        bar_of("bubble", result.step_seconds / longest, seconds_text(result.step_seconds)) + "</tr>\n";
  }
  return out + "</table>\n";
}

// Returns a table of all points. For methods its last column has their settings, as --set takes them.
std::string points_table(const Study& study) {
  const bool shows_settings = study.shows_settings();
  std::string out = "<table class=\"points\">\n<tr>";
  for (const std::string& axis : study.axes) out += cell("th", axis);
  for (const char* const name : {"model", "step", "tokens/s", "MFU", "PFLOP/s", "peak"})
    out += fmt::format("<th class=\"number\">{}</th>", name);
  if (shows_settings) out += "<th class=\"settings\">settings</th>";
  out += "</tr>\n";
  for (const StudyPoint& point : study.points) {
    const std::string last =
        shows_settings ? fmt::format("<td class=\"settings\">{}</td></tr>\n", escape_html(join(point.settings, ", ")))
                       : "</tr>\n";
    out += "<tr>";
    for (const std::string& value : point.values) out += cell("td", value);
    if (!point.result) {
      out += fmt::format("<td colspan=\"6\" class=\"large\">{}</td>", escape_html(point.refused)) + last;
      continue;
    }
    const LayoutResult& result = *point.result;
    out += number_cell(format_count(static_cast<double>(point.parameters))) +
           number_cell(seconds_text(result.step_seconds)) + number_cell(format_count(result.tokens_per_second)) +
           number_cell(fmt::format("{:.1f}%", 100 * result.mfu)) +
           number_cell(fmt::format("{:.3g}", result.model_flops / 1e15));
    out += fmt::format("<td class=\"number{}\">{}{}</td>", study.fits(point) ? "" : " large",
                       bytes_text(result.peak_bytes), shortage_of(study, point)) +
           last;
  }
  return out + "</table>\n";
}

}  // namespace

std::string search_page(const std::string& title, const LayoutSearch& search, const std::string& config) {
  HtmlPage page(title, plan_css);
  page.add_note(fmt::format("{} x {}, the best by {}; {}", search.gpus, escape_html(search.machine), search.objective,
                            escape_html(search.error.text())));
  if (!search.origin.empty()) page.add_note(escape_html(search.origin));
  if (!search.held.empty()) page.add_note(fmt::format("All with {}.", escape_html(join(search.held, ", "))));
  if (search.activation_budget > 0)
    page.add_note(
        fmt::format("{} for activations with memory.recompute optimal.", bytes_text(search.activation_budget)));
  std::vector<HtmlPage::Fact> facts = {
      {"Layouts", format_grouped(search.num_layouts)},
      {"Too large", format_grouped(search.num_too_large), bytes_text(search.device_bytes) + " a device"}};
  if (search.best.empty()) {
    page.add_summary(facts);
    page.add_section(
        "Nothing fits",
        fmt::format("<p>The nearest layout lacks {}{}: {}.</p>\n", bytes_text(search.least_missing_bytes),
                    search.least_missing_is_exact ? "" : " or more", escape_html(layout_text(search.least_missing))));
    return page.text();
  }
  const LayoutResult& best = search.best.front();
  facts.push_back({"Step", seconds_text(best.step_seconds), format_count(best.tokens_per_second) + " tokens/s"});
  if (!search.published.software.empty())
    facts.push_back({"Published step", seconds_text(search.published.seconds), search.published.software});
  facts.push_back({"MFU", fmt::format("{:.1f}%", 100 * best.mfu)});
  facts.push_back({"Peak memory", bytes_text(best.peak_bytes)});
  facts.push_back({"Device-hours", device_hours_text(best), "goodput " + goodput_text(best.goodput)});
  if (best.cost > 0) facts.push_back({"Cost", format_count(best.cost)});
  page.add_summary(facts);
  page.add_section("Best layouts", best_table(search));
  page.add_section("Why others lost", lost_table(search));
  page.add_config(config);
  return page.text();
}

std::string study_page(const std::string& title, const Study& study) {
  HtmlPage page(title, plan_css);
  page.add_note(fmt::format("{}, on {}; {}{}{}", escape_html(study.title), escape_html(study.machine),
                            escape_html(study.error.text()), study.note.empty() ? "" : "; ", escape_html(study.note)));
  if (!study.origin.empty()) page.add_note(escape_html(study.origin));
  if (study.kind == Study::Kind::sweep && study.axes.size() == 2) {
    page.add_section("Speed and memory", heat_maps(study));
  } else if (study.kind == Study::Kind::methods) {
    page.add_section("Memory and time", method_bars(study));
  } else if (const std::string figures = study.kind == Study::Kind::fit ? "" : plots(study); !figures.empty()) {
    page.add_plots(figures);
  }
  page.add_section("All points", points_table(study));
  return page.text();
}

}  // namespace gptrain::report
