// The events of a step over ranks that are threads of the test: planned and real ones.
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

// Events in words, by part of the step: before the first action, each action, after the last. Leaves out times, and
// waits, of which a real step records only those where the caller had to wait.
using EventWords = std::vector<std::vector<std::string>>;
EventWords in_words(const StepLog& log);

struct RankEvents {
  EventWords planned;
  StepProfile profile;
};

// Returns the events of the second step of each rank, each on its own backend.
std::vector<RankEvents> events_on_ranks(const RunConfig& config, int64_t world_size,
                                        const std::function<std::unique_ptr<Backend>()>& make_device);

}  // namespace gptrain::testing
