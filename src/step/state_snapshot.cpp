#include "step/state_snapshot.h"

#include <cstring>
#include <type_traits>
#include <utility>

namespace gptrain::inline step {

StateSnapshot::StateSnapshot(Backend& backend, int64_t bytes, int64_t clone_bytes)
    : backend_(backend),
      clone_bytes_(clone_bytes),
      copy_queue_(backend.make_side_queue()),
      memory_(memory_for("checkpoint.asynchronous", [&] {
        return copy_queue_ != nullptr ? copy_queue_->allocate_host(bytes) : backend.allocate(bytes);
      })) {
  if (copy_queue_ != nullptr) return;  // pinned memory has its pages already
  constexpr int64_t page_bytes = 4096;
  for (int64_t at = 0; at < memory_->bytes(); at += page_bytes) backend.upload(memory_->data() + at, "", 1);
}

std::vector<StateSlice> StateSnapshot::copy(std::vector<StateSlice> pieces, const StateColumns& columns,
                                            const FindSource& source) {
  if (copy_queue_ != nullptr) {
    copy_queue_->mark_ops(0);
    copy_queue_->follow_ops(0);
  }
  std::byte* target = memory_->data() + clone_bytes_;
  const auto copy_part = [&](auto*& part, int64_t bytes) {
    const Source found = source(part);
    if (found.is_cloned) return;
    if (found.on_host != nullptr) {
      std::memcpy(target, found.on_host, static_cast<size_t>(bytes));
    } else if (copy_queue_ != nullptr) {
      copy_queue_->queue_download(target, part, bytes);
    } else {
      backend_.download(target, part, bytes);
    }
    part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(target);
    target += align_up(bytes);
  };
  for (StateSlice& piece : pieces) {
    if (piece.weight != nullptr) copy_part(piece.weight, piece.count() * dtype_bytes(DType::f32));
    for (float** const of_sums : {&piece.residual, &piece.factor})
      if (*of_sums != nullptr) copy_part(*of_sums, piece.count() * dtype_bytes(DType::f32));
    if (piece.narrow_weight != nullptr) copy_part(piece.narrow_weight, piece.count() * dtype_bytes(DType::bf16));
    for (size_t i = 0; i < piece.columns.size(); ++i) {
      if (piece.columns[i] != nullptr) copy_part(piece.columns[i], piece.column_bytes(columns[i]));
    }
    piece.gradient = nullptr;
    piece.narrow_gradient = nullptr;
  }
  if (copy_queue_ != nullptr) {
    copy_queue_->mark_work(0);
    copy_queue_->await_work(0);
  }
  return pieces;
}

}  // namespace gptrain::step
