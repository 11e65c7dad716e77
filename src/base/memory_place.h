// Location of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/enum_array.h"

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

// Words for a place in reports: before the name of a class in JSON, and behind it in texts.
struct PlaceWords {
  std::string_view key, text;

  bool operator==(const PlaceWords&) const = default;
};
constexpr EnumArray<MemoryPlace, PlaceWords, num_memory_places> place_words = {
    PlaceWords{}, {"host", "on the host"}, {"host", "on the host"}, {"disk", "on disk"}};

}  // namespace gptrain::base
