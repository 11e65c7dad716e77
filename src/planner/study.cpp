#include "planner/study.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "base/enum_array.h"
#include "base/json.h"
#include "base/units.h"
#include "config/faults.h"

namespace gptrain::inline planner {
namespace {

using Json = nlohmann::ordered_json;

constexpr EnumArray<Study::Kind, std::string_view, 5> kind_names = {"sweep", "methods", "scale", "links", "fit"};

// Returns the widths of the axes' columns.
std::vector<size_t> axis_widths(const Study& study) {
  std::vector<size_t> widths;
  for (size_t axis = 0; axis < study.axes.size(); ++axis) {
    size_t width = study.axes[axis].size();
    for (const StudyPoint& point : study.points) width = std::max(width, point.values[axis].size());
    widths.push_back(width);
  }
  return widths;
}

std::string point_text(const Study& study, const StudyPoint& point) {
  if (!point.result) return "   " + one_line(point.refused);
  const LayoutResult& result = *point.result;
  std::string text =
      fmt::format(" {:>9} {:>11} {:>9} {:>6.1f}% {:>9.3g} {:>10}", format_count(static_cast<double>(point.parameters)),
                  fmt::format("{:.4g} s", result.step_seconds), format_count(result.tokens_per_second),
                  100 * result.mfu, result.model_flops / 1e15, format_bytes(static_cast<double>(result.peak_bytes)));
  if (result.cost > 0) text += fmt::format(" {:>9}", format_count(result.cost));
  if (!study.fits(point)) text += "   does not fit: " + missing_text(study, point);
  return text;
}

bool study_has_price(const Study& study) {
  return std::any_of(study.points.begin(), study.points.end(),
                     [](const StudyPoint& point) { return point.result && point.result->cost > 0; });
}

// Returns the settings of each method; empty if the points are not methods.
std::string settings_text(const Study& study) {
  std::string text;
  for (const StudyPoint& point : study.points) {
    if (point.settings.empty()) continue;
    if (text.empty()) text = "\nsettings of each method\n";
    text += Lines("  {}: {}\n", point.values.front(), join(point.settings, ", ")).text();
  }
  return text;
}

// Returns the text as JSON if it is JSON, otherwise as a string; "-" as null.
Json typed_value(const std::string& text) {
  if (text == "-") return nullptr;
  Json value = parse_json_or_discard(text);
  return value.is_discarded() ? Json(text) : value;
}

}  // namespace

std::string missing_text(const Study& study, const StudyPoint& point) {
  if (study.fits(point)) return "";
  const LayoutResult& result = *point.result;
  std::vector<std::string> missing;
  for (const auto& [bytes, place] : {std::pair{result.peak_bytes - study.device_bytes, ""},
                                     {study.lacks_on_host(point), " of a node's host"},
                                     {result.lacks_on_drives, " of a node's drives"}}) {
    if (bytes > 0) missing.push_back(format_bytes(static_cast<double>(bytes)) + place);
  }
  return join(missing, ", ") + " missing";
}

std::string study_text(const Study& study) {
  const std::vector<size_t> widths = axis_widths(study);
  std::string text = Lines("{}, on {}\n", study.title, study.machine).text();
  if (!study.origin.empty()) text += fmt::format("  {}\n", study.origin);
  text += fmt::format("  {}\n", study.error.text());
  if (!study.note.empty()) text += fmt::format("  {}\n", study.note);
  text += "\n ";
  for (size_t axis = 0; axis < widths.size(); ++axis) text += fmt::format(" {:>{}}", study.axes[axis], widths[axis]);
  text += fmt::format(" {:>9} {:>11} {:>9} {:>7} {:>9} {:>10}", "model", "step", "tokens/s", "MFU", "PFLOP/s", "peak");
  if (study_has_price(study)) text += fmt::format(" {:>9}", "cost");
  text += "\n";
  for (const StudyPoint& point : study.points) {
    text += " ";
    for (size_t axis = 0; axis < widths.size(); ++axis)
      text += fmt::format(" {:>{}}", one_line(point.values[axis]), widths[axis]);
    text += point_text(study, point) + "\n";
  }
  return text + settings_text(study);
}

std::string study_json(const Study& study) {
  Json json{{"study", kind_names[study.kind]},
            {"machine", study.machine},
            {"expected_error", study.error.share},
            {"expected_error_source", study.error.source},
            {"origin", study.origin},
            {"title", study.title},
            {"target_memory_bytes", study.device_bytes},
            {"host_memory_bytes", study.host_bytes},
            {"points", Json::array()}};
  for (const StudyPoint& point : study.points) {
    Json entry;
    for (size_t axis = 0; axis < study.axes.size(); ++axis)
      entry[(study.keys.empty() ? study.axes : study.keys)[axis]] = typed_value(point.values[axis]);
    entry["gpus"] = point.gpus;
    if (!point.settings.empty()) entry["settings"] = point.settings;
    if (point.result) {
      const LayoutResult& result = *point.result;
      entry["total_parameters"] = point.parameters;
      entry["step_seconds"] = result.step_seconds;
      entry["tokens_per_second"] = result.tokens_per_second;
      entry["mfu"] = result.mfu;
      entry["model_pflops"] = result.model_flops / 1e15;
      entry["peak_bytes"] = result.peak_bytes;
      entry["host_bytes_of_node"] = result.host_bytes;
      entry["fits"] = study.fits(point);
      entry["gpu_hours"] = result.gpu_hours;
      if (result.cost > 0) entry["cost"] = result.cost;
    } else {
      entry["refused"] = point.refused;
    }
    json["points"].push_back(std::move(entry));
  }
  return json_text(json, 2) + "\n";
}

}  // namespace gptrain::planner
