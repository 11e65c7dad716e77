// A schedule with a place for each of its buffers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/memory.h"
#include "schedule/schedule.h"

namespace gptrain {

// The arena in which buffers of a kind lie.
MemoryClass memory_class(BufferKind kind);

// Bytes of the buffers of each kind, by unit; a batch, which is of no unit, has those of unit 0.
using BufferBytes = std::array<std::vector<int64_t>, num_buffer_kinds>;

struct Program {
  Schedule schedule;
  std::vector<int64_t> offsets;  // by buffer: bytes from the start of its arena
  MemoryPlan memory;             // of the arenas that hold buffers, each in its place
  BufferBytes bytes;

  // Where the buffer that the action names as the operand lies; null where it names none.
  std::byte* address(const Action& action, Operand operand,
                     const std::array<std::byte*, num_memory_classes>& arenas) const;

  // A part of the record that an action copies, and its place on the host.
  struct RecordPart {
    std::byte* device;
    std::byte* host;
    int64_t bytes;
  };
  std::vector<RecordPart> record(const Action& action, const std::array<std::byte*, num_memory_classes>& arenas) const;
};

// That the unit's record takes on the host.
int64_t record_bytes(const BufferBytes& bytes, const UnitTraits& traits, int32_t unit);

// Gives every buffer offsets that overlap with no other buffer that is alive at the same time. `record_place`: where
// offloaded records lie.
std::shared_ptr<const Program> make_program(Schedule schedule, BufferBytes bytes, MemoryPlace record_place);

}  // namespace gptrain
