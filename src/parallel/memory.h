// The classes of memory that a step takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gptrain {

// One arena each, taken once at start.
enum class MemoryClass : uint8_t {
  weights,        // in the compute dtype; with fp32 and bf16-pure what updates go to
  gradients,      // f32
  master,         // f32 master weights of mixed precision
  optimizer,      // the columns of the optimizer's state; "moments" in reports, whose keys keep their names
  gathered,       // whole weights of units whose pieces are gathered (ZeRO 3)
  buckets,        // whole gradients of units whose pieces are kept (ZeRO 2 and 3), and of sums in bf16
  fp8_weights,    // copies of blocks' weights for FP8 linears
  activations,    // the residual stream and its gradients, and what units keep between actions
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

}  // namespace gptrain
