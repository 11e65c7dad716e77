#include "parallel/program.h"

#include <algorithm>
#include <utility>

#include "base/enum_array.h"
#include "model/record.h"
#include "schedule/allocator.h"

namespace gptrain::inline parallel {

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
    case BufferKind::offloaded:
      return MemoryClass::offloaded;
    default:
      return MemoryClass::activations;
  }
}

std::byte* Program::address(const Action& action, Operand operand, const ArenaStarts& arenas) const {
  const int32_t index = action[operand];
  if (index < 0) return nullptr;
  const auto buffer = static_cast<size_t>(index);
  const BufferKind kind = schedule.buffers[buffer].kind;
  const MemoryPlace place = kind == BufferKind::offloaded ? record_place : MemoryPlace::device;
  return arenas.at(place, memory_class(kind)) + offsets[buffer];
}

std::vector<Program::RecordPart> Program::record(const Action& action, const ArenaStarts& arenas) const {
  std::vector<RecordPart> parts;
  std::byte* host = address(action, Operand::host, arenas);
  for (const Operand operand : record_operands) {
    if (action[operand] < 0) continue;
    const Buffer& buffer = schedule.buffers[action[operand]];
    const int64_t size = bytes[buffer.kind][buffer.unit];
    if (size > 0) parts.push_back({address(action, operand, arenas), host, size});
    host += align_up(size);
  }
  return parts;
}

int64_t record_bytes(const BufferBytes& bytes, const UnitTraits& traits, int32_t unit) {
  const OperandSet record = record_of(traits);
  const auto of = [&](BufferKind kind, int32_t owner) { return align_up(bytes[kind][owner]); };
  int64_t sum = 0;
  if (record.contains(Operand::input)) sum += of(BufferKind::stream, unit - 1);
  if (record.contains(Operand::saved_for_recompute)) sum += of(BufferKind::saved_for_recompute, unit);
  if (record.contains(Operand::saved_for_input)) sum += of(BufferKind::saved_for_input, unit);
  if (record.contains(Operand::saved_for_weight)) sum += of(BufferKind::saved_for_weight, unit);
  return sum;
}

std::shared_ptr<const Program> make_program(Schedule schedule, BufferBytes bytes, MemoryPlace record_place) {
  const auto program = std::make_shared<Program>();
  program->schedule = std::move(schedule);
  program->bytes = std::move(bytes);
  program->record_place = record_place;
  const std::vector<Buffer>& buffers = program->schedule.buffers;
  program->offsets.resize(buffers.size());
  EnumArray<MemoryClass, std::vector<uint32_t>, num_memory_classes> members;
  for (size_t i = 0; i < buffers.size(); ++i)
    members[memory_class(buffers[i].kind)].push_back(static_cast<uint32_t>(i));
  for (size_t c = 0; c < num_memory_classes; ++c) {
    std::vector<Lifetime> lifetimes;
    lifetimes.reserve(members[c].size());
    for (const size_t i : members[c]) {
      const Buffer& buffer = buffers[i];
      const auto unit = static_cast<size_t>(std::max(buffer.unit, 0));
      lifetimes.push_back({buffer.first, buffer.last, program->bytes[buffer.kind][unit]});
    }
    const Placement placement = place_buffers(lifetimes);
    for (size_t i = 0; i < members[c].size(); ++i) program->offsets[members[c][i]] = placement.offsets[i];
    const bool holds_records = static_cast<MemoryClass>(c) == MemoryClass::offloaded;
    program->memory.on(holds_records ? record_place : MemoryPlace::device)[c] = placement.bytes;
  }
  return program;
}

}  // namespace gptrain::parallel
