// The events of a step over ranks that are threads of the test: as planned, and as it ran.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "ops/backend.h"
#include "step/step_profile.h"

namespace gptrain::testing {

// By part of the step: before the first action, each action, after the last one. Each event in words, without its time
// and the waits, of which a step that ran has those that had to wait.
using EventWords = std::vector<std::vector<std::string>>;
EventWords in_words(const StepLog& log);

struct RankEvents {
  EventWords planned;
  StepProfile profile;
};

// The second step of each rank, on a backend of its own.
std::vector<RankEvents> events_on_ranks(const RunConfig& config, int64_t world_size,
                                        const std::function<std::unique_ptr<Backend>()>& make_device);

}  // namespace gptrain::testing
