// Where everything that a step touches lies: the classes of memory, and the places of a schedule's slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/micro_batch.h"
#include "model/units.h"
#include "schedule/schedule.h"

namespace gptrain {

// One arena each, taken once at start.
enum class MemoryClass : uint8_t {
  weights,        // in the compute dtype; with fp32 and bf16-pure what updates go to
  gradients,      // f32
  master,         // f32 master weights of mixed precision
  optimizer,      // the columns of the optimizer's state; "moments" in reports, whose keys keep their names
  gathered,       // slots for whole weights of units whose pieces are gathered (ZeRO 3)
  buckets,        // slots for whole gradients: of units whose pieces are kept (ZeRO 2 and 3), of sums in bf16
  fp8_weights,    // copies of blocks' weights for FP8 linears
  activations,    // slots of the schedule: saved records, stream gradients
  workspace,      // tensors inside one action, and ops' scratch
  data,           // micro-batches on the device, and the ring they are read ahead into
  communication,  // what collectives pass through, and receive in: the device's memory, or the host's
  state,          // StepState, norm partials, segment tables
  count
};
constexpr size_t num_memory_classes = static_cast<size_t>(MemoryClass::count);
constexpr std::array<std::string_view, num_memory_classes> memory_class_names = {
    "weights",     "gradients",   "master",    "moments", "gathered",      "buckets",
    "fp8_weights", "activations", "workspace", "data",    "communication", "state"};

struct MemoryPlan {
  std::array<int64_t, num_memory_classes> bytes{};

  int64_t& operator[](MemoryClass c) { return bytes[static_cast<size_t>(c)]; }
  int64_t operator[](MemoryClass c) const { return bytes[static_cast<size_t>(c)]; }
  int64_t total() const;  // the peak: arenas are taken at start and kept
};

// The place of every slot of a schedule inside the activation arena, and of its micro-batches inside the data arena.
class SlotMap {
 public:
  SlotMap(const Units& units, const Schedule& schedule);

  int64_t activation_bytes() const { return activation_bytes_; }
  int64_t data_bytes() const { return data_bytes_; }

  // The memory of one action. `activations` and `data` are the arenas' starts.
  UnitCall call(const Action& action, std::byte* activations, std::byte* data) const;
  MicroBatch micro_batch(const Action& action, std::byte* data) const;

 private:
  int64_t batch_, sequence_length_;
  bool with_documents_;
  std::vector<bool> recomputed_;
  std::vector<int64_t> input_offset_;  // of a unit's input, inside an activation slot (unit 0 has none)
  std::vector<int64_t> saved_offset_;  // of a unit's saved record there, where it is not recomputed
  int64_t activation_stride_ = 0, replay_stride_ = 0, gradient_stride_ = 0, carrier_stride_ = 0;
  int64_t replay_start_ = 0, gradient_start_ = 0, carrier_start_ = 0;
  int64_t activation_bytes_ = 0, data_bytes_ = 0;
};

}  // namespace gptrain
