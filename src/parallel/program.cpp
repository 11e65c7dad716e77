#include "parallel/program.h"

#include <utility>

#include "schedule/allocator.h"

namespace gptrain {

MemoryClass memory_class(BufferKind kind) {
  switch (kind) {
    case BufferKind::batch:
      return MemoryClass::data;
    case BufferKind::weights:
      return MemoryClass::gathered;
    case BufferKind::prepared_weights:
      return MemoryClass::fp8_weights;
    case BufferKind::whole_gradients:
    case BufferKind::narrow_gradients:
      return MemoryClass::buckets;
    default:
      return MemoryClass::activations;
  }
}

std::byte* Program::address(const Action& action, Operand operand,
                            const std::array<std::byte*, num_memory_classes>& arenas) const {
  const int32_t index = action[operand];
  if (index < 0) return nullptr;
  const auto buffer = static_cast<size_t>(index);
  return arenas[static_cast<size_t>(memory_class(schedule.buffers[buffer].kind))] + offsets[buffer];
}

Program make_program(Schedule schedule, const BufferBytes& bytes) {
  Program program{.schedule = std::move(schedule), .offsets = {}, .memory = {}};
  const std::vector<Buffer>& buffers = program.schedule.buffers;
  program.offsets.resize(buffers.size());
  for (size_t c = 0; c < num_memory_classes; ++c) {
    std::vector<size_t> members;
    std::vector<Lifetime> lifetimes;
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (static_cast<size_t>(memory_class(buffers[i].kind)) != c) continue;
      members.push_back(i);
      lifetimes.push_back({buffers[i].first, buffers[i].last, bytes(buffers[i])});
    }
    const Placement placement = place(lifetimes);
    for (size_t i = 0; i < members.size(); ++i) program.offsets[members[i]] = placement.offsets[i];
    program.memory.bytes[c] = placement.bytes;
  }
  return program;
}

}  // namespace gptrain
