// Location of memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gptrain::inline base {

// If the device's memory is host memory, all of it counts as device.
enum class MemoryPlace : uint8_t {
  device,
  pinned_host,  // host memory that a device with its own memory copies to and from
  host,         // host memory that only the host uses
  disk,
  count
};
constexpr size_t num_memory_places = static_cast<size_t>(MemoryPlace::count);

}  // namespace gptrain::base
