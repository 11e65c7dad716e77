// Whether asynchronous checkpoints read state on disk from clones of the working files, or from a copy in memory.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace gptrain::inline config {

enum class DiskClones : uint8_t { automatic, always, never };
constexpr std::array<std::string_view, 3> disk_clones_names = {"auto", "always", "never"};

}  // namespace gptrain::config
