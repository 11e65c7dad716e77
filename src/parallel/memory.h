// The memory that a step uses, by place and class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/enum_array.h"
#include "base/memory_place.h"

namespace gptrain::inline parallel {

// Classes of memory. Each has one arena, allocated once at start.
enum class MemoryClass : uint8_t {
  weights,        // weights in the compute dtype; updated directly with fp32 and bf16-pure
  gradients,      // f32, or with precision.gradients bf16
  master,         // f32 master weights of mixed precision
  residuals,      // errors of compressed gradients, of the steps so far and of this step
  optimizer,      // columns of the optimizer's state; "moments" in reports, for compatibility
  gathered,       // whole weights of units whose pieces are gathered (ZeRO 3)
  buckets,        // BufferKind::whole_gradients and narrow_gradients; messages of compressed gradients
  fp8_weights,    // blocks' weights, quantized to FP8
  activations,    // the residual stream and its gradients, and values that units keep between actions
  workspace,      // tensors inside one action, and ops' scratch
  data,           // micro-batches, and on the host the ring of micro-batches read ahead
  communication,  // buffers of collectives
  state,          // StepState, norm partials, segment tables
  snapshot,       // the host's copy of the state that the rank is writing to a checkpoint
  samples,        // the host's copy of the rank's part of the model, for the texts of run.sample_every_steps
  offloaded,      // offloaded records, on the host
  count
};
constexpr size_t num_memory_classes = static_cast<size_t>(MemoryClass::count);
constexpr EnumArray<MemoryClass, std::string_view, num_memory_classes> memory_class_names = {
    "weights",     "gradients", "master", "residuals",     "moments", "gathered", "buckets", "fp8_weights",
    "activations", "workspace", "data",   "communication", "state",   "snapshot", "samples", "offloaded"};

// Bytes by place and class. Arenas last from start to end, so the sum is the peak.
class MemoryPlan {
 public:
  using ByClass = EnumArray<MemoryClass, int64_t, num_memory_classes>;

  ByClass& on(MemoryPlace place) { return bytes_[place]; }
  const ByClass& on(MemoryPlace place) const { return bytes_[place]; }
  // Bytes of a class on the device.
  int64_t& operator[](MemoryClass c) { return on(MemoryPlace::device)[c]; }
  int64_t operator[](MemoryClass c) const { return on(MemoryPlace::device)[c]; }
  MemoryPlan& operator+=(const MemoryPlan& other);

  int64_t total(MemoryPlace place = MemoryPlace::device) const;
  // Returns the bytes of host memory, pinned or not.
  ByClass host_memory() const;

  bool operator==(const MemoryPlan&) const = default;

 private:
  EnumArray<MemoryPlace, ByClass, num_memory_places> bytes_{};
};

// Starts of arenas by place and class; null: none.
class ArenaStarts {
 public:
  std::byte*& at(MemoryPlace place, MemoryClass c) { return starts_[place][c]; }
  std::byte* at(MemoryPlace place, MemoryClass c) const { return starts_[place][c]; }

 private:
  EnumArray<MemoryPlace, EnumArray<MemoryClass, std::byte*, num_memory_classes>, num_memory_places> starts_{};
};

// Bytes of host memory, beside the device's, that all ranks of one machine use together.
struct HostMemoryUse {
  int64_t ranks = 0;
  MemoryPlan::ByClass bytes{};

  void add(const MemoryPlan::ByClass& of_rank);
  int64_t total() const;
};

}  // namespace gptrain::parallel
