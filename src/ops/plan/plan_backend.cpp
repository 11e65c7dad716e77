#include "ops/plan/plan_backend.h"

#include <algorithm>
#include <utility>

#include "ops/fused_attention_policy.h"
#include "ops/shape_text.h"

namespace gptrain {

OpTotals& OpTotals::operator+=(const OpTotals& other) {
  calls += other.calls;
  model_flops += other.model_flops;
  executed_flops += other.executed_flops;
  bytes_moved += other.bytes_moved;
  return *this;
}

std::unique_ptr<DeviceMemory> PlanBackend::allocate(int64_t bytes) {
  void* address = reinterpret_cast<void*>(next_address_);  // NOLINT: a name for the memory, never dereferenced
  // As aligned as real memory, with room between, so that an address names one allocation.
  constexpr uintptr_t granule = uintptr_t{1} << 20;
  next_address_ += (static_cast<uintptr_t>(bytes) / granule + 2) * granule;
  return std::make_unique<DeviceMemory>(address, bytes);
}

OpTable PlanBackend::since(const OpTable& before) const {
  OpTable difference;
  for (size_t i = 0; i < num_ops; ++i) {
    difference[i] = {ops_[i].calls - before[i].calls, ops_[i].model_flops - before[i].model_flops,
                     ops_[i].executed_flops - before[i].executed_flops, ops_[i].bytes_moved - before[i].bytes_moved};
  }
  return difference;
}

void PlanBackend::add(const OpTable& ops, int64_t times) {
  const auto factor = static_cast<Flops>(times);
  for (size_t i = 0; i < num_ops; ++i) {
    ops_[i] += {ops[i].calls * times, ops[i].model_flops * factor, ops[i].executed_flops * factor,
                ops[i].bytes_moved * factor};
  }
}

std::string PlanBackend::take_warnings() {
  std::string lines;
  for (const std::string& warning : std::exchange(warnings_, {})) lines += warning + '\n';
  return lines;
}

template <typename Op>
void PlanBackend::look_for_unserved_documents(const Op& op) {
  if (target_.kind == Target::Kind::gpu && op.mask.max_documents > 0 && !fused_attention_shape(op))
    warnings_.insert(own_kernels_warning(op, fused_attention_rule));
}
template void PlanBackend::look_for_unserved_documents(const AttentionForward& op);
template void PlanBackend::look_for_unserved_documents(const AttentionBackward& op);

void PlanBackend::note(OpIndex index, const Footprint& footprint) {
  scratch_bytes_ = std::max(scratch_bytes_, footprint.scratch_bytes);
  ops_[static_cast<size_t>(index)] += {1, recomputing_ ? 0 : footprint.model_flops, footprint.executed_flops,
                                       static_cast<Flops>(footprint.bytes_moved)};
}

}  // namespace gptrain
