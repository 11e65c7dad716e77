#include "ops/plan/plan_backend.h"

#include <fmt/format.h>
#include <functional>
#include <utility>
#include <vector>

#include "ops/footprint.h"
#include "ops/fused_attention_policy.h"
#include "ops/key_tiles.h"

namespace gptrain::inline ops {

namespace {

class HostMemory final : public DeviceMemory {
 public:
  explicit HostMemory(int64_t bytes) : DeviceMemory(nullptr, bytes), words_(static_cast<size_t>(bytes + 7) / 8) {
    data_ = words_.data();
  }

 private:
  std::vector<uint64_t> words_;
};

// Queue that only logs copies; no call waits.
class PlanSideQueue final : public SideQueue {
 public:
  PlanSideQueue(PlanBackend& backend, EventLog* log) : backend_(backend), log_(log) {}

  void mark_ops(int) override {}
  void follow_ops(int) override {}
  void mark_work(int) override {}
  void ops_follow(int) override {}
  void await_ops(int) override {}
  void await_work(int) override {}
  void finish_work(int) override {}
  void time_ops(int) override {}
  double seconds_between(int, int) override { return 0; }
  void* handle() const override { return nullptr; }
  void upload(void*, const void*, int64_t bytes) override { note(copy_event(upload_name, bytes)); }
  void download(void*, const void*, int64_t bytes) override { note(copy_event(download_name, bytes)); }
  void queue_upload(void*, const void*, int64_t bytes) override { note(copy_event(upload_name, bytes, true)); }
  void queue_download(void*, const void*, int64_t bytes) override { note(copy_event(download_name, bytes, true)); }
  void copy_among_ops(void*, const void*, int64_t bytes) override { note(copy_event(copy_among_ops_name, bytes)); }
  std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes) override { return std::make_unique<HostMemory>(bytes); }
  std::unique_ptr<DeviceMemory> allocate_for_copies(int64_t bytes) override { return backend_.allocate(bytes); }
  void while_waiting(std::function<void()>) override {}

 private:
  void note(Event event) {
    if (log_ != nullptr && log_->on()) log_->add(std::move(event));
  }

  PlanBackend& backend_;
  EventLog* const log_;
};

}  // namespace

std::unique_ptr<DeviceMemory> PlanBackend::allocate(int64_t bytes) {
  void* address = reinterpret_cast<void*>(next_address_);  // NOLINT: identifies the memory, never dereferenced
  // Aligned like real memory, with gaps, so that an address identifies one allocation.
  constexpr uintptr_t granule = uintptr_t{1} << 20;
  next_address_ += (static_cast<uintptr_t>(bytes) / granule + 2) * granule;
  return std::make_unique<DeviceMemory>(address, bytes);
}

std::unique_ptr<SideQueue> PlanBackend::make_side_queue() {
  return target_.kind == Target::Kind::gpu ? std::make_unique<PlanSideQueue>(*this, log_) : nullptr;
}

void PlanBackend::note(std::string_view copy, int64_t bytes) {
  if (log_ != nullptr && log_->on()) log_->add(copy_event(copy, bytes));
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

void PlanBackend::look_for_sparse_tiles(const AttentionForward& op) {
  constexpr int64_t shortest = 16 * attention_tile;  // no pattern fills the tiles of fewer tokens
  if (op.mask.pattern.kind == AttentionKind::dense || op.sequence_length < shortest) return;
  constexpr double largest_ratio = 1.5;
  const Footprint cost = footprint(op, target_);
  const double ratio = static_cast<double>(cost.executed_flops) / static_cast<double>(cost.model_flops);
  if (ratio <= largest_ratio) return;
  warnings_.insert(
      fmt::format("attention {} over {} tokens executes {:.1f} times its model FLOPs, since its keys fill "
                  "few whole tiles of {}; use sizes that are multiples of {}, or a longer sequence",
                  attention_pattern_word(op.mask.pattern), op.sequence_length, ratio, attention_tile, attention_tile));
}

}  // namespace gptrain::ops
