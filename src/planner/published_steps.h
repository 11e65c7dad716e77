// Published figures of steps, each beside the prediction for the same model, layout and devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "machine/event_times.h"
#include "planner/layout_search.h"

namespace gptrain::inline planner {

enum class PublishedFigure : uint8_t {
  seconds,  // seconds of a step
  tflops,   // TFLOP/s of each device, FLOPs counted as in arXiv 2104.04473 (with full recomputation)
  mfu,      // model FLOPs in percent of the device's matrix rate
};

// A published step: a config with the published layout.
struct PublishedPoint {
  std::string name;
  int64_t gpus = 1;
  double published = 0;
  RunConfig config = {};
  std::optional<LayoutResult> result = {};  // empty before predict_published, and if the layout cannot be planned
  std::string refused = {};                 // reason if it cannot be planned
};

struct PublishedSteps {
  std::string title, source;
  PublishedFigure figure = PublishedFigure::seconds;
  Machine machine;  // device, cluster and software of the published steps
  std::vector<PublishedPoint> points;
};

// Reads a file of published points (configs/published). The config of a point is a path from the file's folder. THROWS
// Error(usage), with the file and the key, if the file or a config in it has a fault.
PublishedSteps read_published(const std::filesystem::path& file);

// Predicts each point on the machine: sets its `result`, or `refused` if it cannot be planned.
void predict_published(PublishedSteps& steps);

}  // namespace gptrain::planner
