// Predictions side by side, as plain data for reports; planner/studies.h fills it in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/layout_search.h"

namespace gptrain::inline planner {

struct StudyPoint {
  std::vector<std::string> values;  // value on each of the study's axes
  int64_t parameters = 0;           // number of the model's parameters
  int64_t gpus = 1;
  std::optional<LayoutResult> result = {};  // exact; empty if the point is refused
  std::string refused = {};                 // reason if the point is refused
  std::vector<std::string> settings = {};   // settings of a method, as --set takes them; empty for other points
};

struct Study {
  enum class Kind : uint8_t { sweep, methods, scale, links, fit } kind;
  std::string machine = {};
  std::string origin = {};  // see step_origin
  ExpectedError error = {};
  std::string title = {}, note = {};   // one line each; note may be empty
  std::vector<std::string> axes = {};  // names; the last axis varies fastest
  std::vector<std::string> keys = {};  // JSON keys of the axes, with units; empty: their names
  int64_t device_bytes = 0;            // device memory for a rank
  int64_t host_bytes = 0;              // host memory of a node; 0: not known
  std::vector<StudyPoint> points = {};

  // Returns the bytes that a node's host lacks for a predicted point.
  int64_t lacks_on_host(const StudyPoint& point) const {
    return host_bytes > 0 ? std::max<int64_t>(0, point.result->host_bytes - host_bytes) : 0;
  }
  bool fits(const StudyPoint& point) const {
    return point.result && point.result->peak_bytes <= device_bytes && lacks_on_host(point) == 0 &&
           point.result->lacks_on_drives == 0;
  }
  // Returns whether the points are methods with settings.
  bool shows_settings() const {
    return std::any_of(points.begin(), points.end(), [](const StudyPoint& point) { return !point.settings.empty(); });
  }
};

// Returns the bytes that device, host and drives lack, as "1 GiB of a node's host missing"; empty if the point fits.
// REQUIRES: it has a result.
std::string missing_text(const Study& study, const StudyPoint& point);
// Returns a line for each point, for people; points that do not fit are marked.
std::string study_text(const Study& study);
// Returns one JSON object for scripts; keys have units.
std::string study_json(const Study& study);

}  // namespace gptrain::planner
