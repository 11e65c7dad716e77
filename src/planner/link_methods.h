// Methods that make ranks send less, compared over the links between nodes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "machine/event_times.h"
#include "planner/study.h"

namespace gptrain::inline planner {

// Predicts the config with each method that sends less between ranks, for each number of NICs per node and for two slow
// networks. Times are means over the steps after a method's warm-up. The note names the fastest method for each
// network. `nics`: numbers of NICs per node. A method that the config refuses is a point without a result. THROWS
// Error(usage) if the config itself is refused.
Study compare_link_methods(const std::filesystem::path& file, std::span<const std::string> overrides,
                           const Machine& machine, int64_t gpus, const std::vector<int64_t>& nics);

}  // namespace gptrain::planner
