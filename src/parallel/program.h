// A schedule with an offset for each of its buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/enum_array.h"
#include "parallel/memory.h"
#include "schedule/schedule.h"

namespace gptrain::inline parallel {

// Returns the arena of buffers of a kind.
MemoryClass memory_class(BufferKind kind);

// Bytes of a buffer, by kind and unit. A batch, which belongs to no unit, has the bytes at unit 0.
using BufferBytes = EnumArray<BufferKind, std::vector<int64_t>, num_buffer_kinds>;

struct Program {
  Schedule schedule;
  std::vector<int64_t> offsets;                    // by buffer: bytes from the start of its arena
  MemoryPlan memory;                               // sizes of the arenas that hold buffers
  MemoryPlace record_place = MemoryPlace::device;  // place of offloaded records; all other buffers are on the device
  BufferBytes bytes;

  // Returns the address of the action's operand; null if the action has no such operand.
  std::byte* address(const Action& action, Operand operand, const ArenaStarts& arenas) const;

  // A buffer, not empty, of the record that an offload or a fetch copies, and its place on the host.
  struct RecordPart {
    std::byte* device;
    std::byte* host;
    int64_t bytes;
  };
  // Returns the parts of the record that an action copies.
  std::vector<RecordPart> record(const Action& action, const ArenaStarts& arenas) const;
};

// Returns the bytes of host memory that a unit's offloaded record needs for one micro-batch. `traits`: that unit's.
int64_t record_bytes(const BufferBytes& bytes, const UnitTraits& traits, int32_t unit);

// Places all buffers of the schedule: no two that are alive at the same time overlap. `record_place`: place of the
// arena of offloaded records; the other arenas are on the device. Program::memory has arenas of buffers only.
std::shared_ptr<const Program> make_program(Schedule schedule, BufferBytes bytes, MemoryPlace record_place);

}  // namespace gptrain::parallel
