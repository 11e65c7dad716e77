#include "parallel/update_copies.h"

#include <cstring>
#include <exception>

namespace gptrain::inline parallel {

int64_t passed_bytes(const ParameterStore& parameters, int64_t unit, bool to_host) {
  const StagedParts& parts = parameters.staged_units().parts(unit);
  if (!to_host) return parts.weights + parts.norms;
  return parameters.sharding().updates_weights() ? parts.bytes() : parts.gradients;
}

UpdateCopies::UpdateCopies(Backend& gpu, const ParameterStore& of_ops, const ParameterStore& of_updates)
    : to_host_(gpu.make_side_queue()), to_device_(gpu.make_side_queue()), of_ops_(of_ops), of_updates_(of_updates) {
  in_slots_.fill(-1);
}

UpdateCopies::~UpdateCopies() {
  try {
    finish();
  } catch (const std::exception&) {
    // Was reported by the call that found it.
  }
}

void UpdateCopies::finish() {
  for (int mark = 0; mark < SideQueue::num_marks; ++mark) {
    to_host_->finish_work(mark);
    to_device_->finish_work(mark);
  }
}

std::vector<UpdateCopies::Span> UpdateCopies::spans(int64_t unit, bool to_host) const {
  const StagedParts& parts = of_ops_.staged_units().parts(unit);
  const bool weights = !to_host || of_ops_.sharding().updates_weights();
  const UpdateRange device = of_ops_.update_range(unit), host = of_updates_.update_range(unit);
  const auto weights_of = [](const UpdateRange& range) {
    return range.weights != nullptr ? range.weights : reinterpret_cast<std::byte*>(range.master);
  };
  std::vector<Span> spans;
  if (to_host && parts.gradients > 0) spans.push_back({device.gradients, host.gradients, parts.gradients});
  if (weights && parts.weights > 0) spans.push_back({weights_of(device), weights_of(host), parts.weights});
  if (weights && parts.norms > 0)
    spans.push_back({reinterpret_cast<std::byte*>(of_ops_.updated_norms(unit)),
                     reinterpret_cast<std::byte*>(of_updates_.updated_norms(unit)), parts.norms});
  return spans;
}

void UpdateCopies::mark_sums(int64_t unit) {
  const std::lock_guard lock(mutex_);
  to_host_->mark_ops(mark_of(unit));
}

void UpdateCopies::bring(int64_t unit) {
  if (of_ops_.staged_units().parts(unit).bytes() > 0) {
    int64_t& in_slot = in_slots_[of_ops_.staged_units().slot(unit)];
    if (in_slot >= 0) await_given(in_slot);
    in_slot = unit;
  }
  {
    const std::lock_guard lock(mutex_);
    to_host_->follow_ops(mark_of(unit));
  }
  for (const Span& span : spans(unit, true)) to_host_->queue_download(span.host, span.device, span.bytes);
  to_host_->mark_work(mark_of(unit));
}

void UpdateCopies::await_brought(int64_t unit) {
  to_host_->finish_work(mark_of(unit));
  if (!of_ops_.sharding().updates_weights()) clear(unit);
}

void UpdateCopies::clear(int64_t unit) const {
  for (const Span& span : spans(unit, false)) std::memset(span.host, 0, static_cast<size_t>(span.bytes));
}

void UpdateCopies::give_back(int64_t unit) {
  for (const Span& span : spans(unit, false)) to_device_->queue_upload(span.device, span.host, span.bytes);
  const std::lock_guard lock(mutex_);
  to_device_->mark_work(mark_of(unit));
}

void UpdateCopies::follow(int64_t unit) {
  const std::lock_guard lock(mutex_);
  to_device_->ops_follow(mark_of(unit));
}

void UpdateCopies::upload(int64_t unit, Backend& ops) const {
  for (const Span& span : spans(unit, false)) ops.upload(span.device, span.host, span.bytes);
}

}  // namespace gptrain::parallel
