// Published points beside predictions: text, JSON, and a picture.
#pragma once

#include <string>

#include "planner/published_steps.h"

namespace gptrain::inline report {

// Returns the predicted figure of a point, in the unit of the published one. REQUIRES: point.result.
double predicted_figure(const PublishedSteps& steps, const PublishedPoint& point);

std::string published_text(const PublishedSteps& steps);
std::string published_json(const PublishedSteps& steps);
// Returns an SVG file that draws both figures over the number of devices.
std::string published_svg(const PublishedSteps& steps);

}  // namespace gptrain::report
