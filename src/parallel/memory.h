// The memory that a step takes, by place and class.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gptrain {

// One arena each, taken once at start.
enum class MemoryClass : uint8_t {
  weights,        // in the compute dtype; with fp32 and bf16-pure what updates go to
  gradients,      // f32, or with precision.gradients bf16
  master,         // f32 master weights of mixed precision
  optimizer,      // the columns of the optimizer's state; "moments" in reports, whose keys keep their names
  gathered,       // whole weights of units whose pieces are gathered (ZeRO 3)
  buckets,        // whole gradients of units of which pieces are kept (ZeRO 2 and 3), or bf16; and of sums in bf16
  fp8_weights,    // copies of blocks' weights for FP8 linears
  activations,    // the residual stream and its gradients, and what units keep between actions
  workspace,      // tensors inside one action, and ops' scratch
  data,           // micro-batches, and the ring that they are read ahead into, which is the host's
  communication,  // what collectives pass through, and receive in
  state,          // StepState, norm partials, segment tables
  snapshot,       // the host's copy of what the rank writes to a checkpoint, while it is written
  samples,        // the rank's part of the model that writes run.sample_every_steps' texts, on the host meanwhile
  offloaded,      // what offloaded blocks save of micro-batches, on the host
  count
};
constexpr size_t num_memory_classes = static_cast<size_t>(MemoryClass::count);
constexpr std::array<std::string_view, num_memory_classes> memory_class_names = {
    "weights",     "gradients",   "master",    "moments", "gathered",      "buckets", "fp8_weights",
    "activations", "workspace", "data",    "communication", "state",   "snapshot", "samples",
    "offloaded"};

// Whose memory it is. Where a device's memory is the host's, all is the device's.
enum class MemoryPlace : uint8_t {
  device,
  host,  // beside a device whose memory is apart, and pinned
  count
};
constexpr size_t num_memory_places = static_cast<size_t>(MemoryPlace::count);

// Bytes by place and class. Arenas are taken at start and kept, so that the sum is the peak.
class MemoryPlan {
 public:
  using ByClass = std::array<int64_t, num_memory_classes>;

  ByClass& on(MemoryPlace place) { return bytes_[static_cast<size_t>(place)]; }
  const ByClass& on(MemoryPlace place) const { return bytes_[static_cast<size_t>(place)]; }
  // On the device.
  int64_t& operator[](MemoryClass c) { return on(MemoryPlace::device)[static_cast<size_t>(c)]; }
  int64_t operator[](MemoryClass c) const { return on(MemoryPlace::device)[static_cast<size_t>(c)]; }
  MemoryPlan& operator+=(const MemoryPlan& other);

  int64_t total(MemoryPlace place = MemoryPlace::device) const;

  bool operator==(const MemoryPlan&) const = default;

 private:
  std::array<ByClass, num_memory_places> bytes_{};
};

// What the ranks of one machine take of its memory beside their devices (MemoryPlace::host).
struct HostMemoryUse {
  int64_t ranks = 0;
  MemoryPlan::ByClass bytes{};

  void add(const MemoryPlan::ByClass& of_rank);
  int64_t total() const;
};

}  // namespace gptrain
