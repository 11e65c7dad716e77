// A schedule with a place for each of its buffers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/memory.h"
#include "schedule/schedule.h"

namespace gptrain {

// The arena in which buffers of a kind lie.
MemoryClass memory_class(BufferKind kind);

struct Program {
  Schedule schedule;
  std::vector<int64_t> offsets;  // by buffer: bytes from the start of its arena
  MemoryPlan memory;             // of the arenas in which there are buffers

  // Where the buffer that the action names as the operand lies; null where it names none.
  std::byte* address(const Action& action, Operand operand,
                     const std::array<std::byte*, num_memory_classes>& arenas) const;
};

// Bytes of a buffer.
using BufferBytes = std::function<int64_t(const Buffer&)>;

// Gives every buffer a place in which no other that is alive at the same time lies.
Program make_program(Schedule schedule, const BufferBytes& bytes);

}  // namespace gptrain
