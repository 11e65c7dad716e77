// Predictions beside each other: of a config with other values or methods, on more devices, with other links; of other models. Plain
// data for reports; the planner (planner/studies.h) fills it in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/layout_search.h"

namespace gptrain {

struct StudyPoint {
  std::vector<std::string> values;             // of the study's axes
  int64_t parameters = 0;                      // of the model
  int64_t gpus = 1;
  std::optional<LayoutResult> result = {};     // exact; none where it is refused
  std::string refused = {};                    // why
  std::vector<std::string> settings = {};      // of a method: what it sets, as --set takes it
};

struct Study {
  enum class Kind : uint8_t { sweep, methods, scale, links, fit } kind;
  std::string machine = {};
  ExpectedError error = {};
  std::string title = {}, note = {};    // one line each
  std::vector<std::string> axes = {};   // the last one varies the fastest
  std::vector<std::string> keys = {};   // of the axes in JSON, with units; empty: the axes' names
  int64_t room_bytes = 0;               // of a device
  std::vector<StudyPoint> points = {};

  bool fits(const StudyPoint& point) const { return point.result && point.result->peak_bytes <= room_bytes; }
  // The points are methods, each with settings of its own.
  bool shows_settings() const {
    return std::any_of(points.begin(), points.end(), [](const StudyPoint& point) { return !point.settings.empty(); });
  }
};

// For people: a line for each point; those that do not fit are marked.
std::string study_text(const Study& study);
// For scripts: one JSON object, keys with units.
std::string study_json(const Study& study);

}  // namespace gptrain
