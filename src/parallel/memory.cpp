#include "parallel/memory.h"

#include <algorithm>
#include <numeric>

namespace gptrain {

int64_t MemoryPlan::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

SlotMap::SlotMap(const Model& model, const Schedule& schedule)
    : batch_(model.shape().batch),
      sequence_length_(model.shape().sequence_length),
      with_documents_(model.shape().mask_documents),
      recomputed_(schedule.recomputed) {
  for (int64_t unit = 0; unit < schedule.num_units; ++unit) {
    const bool replayed = recomputed_[static_cast<size_t>(unit)];
    input_offset_.push_back(activation_stride_);
    if (unit > 0) activation_stride_ += model.stream_bytes();
    saved_offset_.push_back(activation_stride_);
    saved_for_input_bytes_.push_back(model.records(unit).saved_for_input_bytes);
    if (!replayed) activation_stride_ += model.records(unit).saved_bytes();
    if (replayed) replay_stride_ = std::max(replay_stride_, model.records(unit).saved_bytes());
    gradient_stride_ = std::max(gradient_stride_, model.records(unit).gradients_bytes);
  }
  carrier_stride_ = model.carrier_bytes();
  replay_start_ = schedule.activation_slots * activation_stride_;
  gradient_start_ = replay_start_ + schedule.replay_slots * replay_stride_;
  carrier_start_ = gradient_start_ + schedule.gradient_slots * gradient_stride_;
  activation_bytes_ = carrier_start_ + schedule.carrier_slots * carrier_stride_;
  data_bytes_ = schedule.activation_slots * MicroBatch::bytes(batch_, sequence_length_, with_documents_);
}

LayerCall SlotMap::call(const Action& action, std::byte* activations, std::byte* data) const {
  LayerCall call;
  if (action.activation >= 0) {
    const auto unit = static_cast<size_t>(action.unit);
    std::byte* slot = activations + action.activation * activation_stride_;
    call.input = slot + input_offset_[unit];
    if (unit + 1 < input_offset_.size()) call.output = slot + input_offset_[unit + 1];
    call.saved_for_input =
        recomputed_[unit] ? activations + replay_start_ + action.replay * replay_stride_ : slot + saved_offset_[unit];
    call.saved_for_weight = call.saved_for_input + saved_for_input_bytes_[unit];
    const MicroBatch batch = micro_batch(action, data);
    call.tokens = batch.tokens;
    call.targets = batch.targets;
    call.sample_ids = batch.sample_ids;
    call.document_starts = batch.document_starts;
  }
  if (action.gradient >= 0) call.gradients = activations + gradient_start_ + action.gradient * gradient_stride_;
  if (action.d_output >= 0) call.d_output = activations + carrier_start_ + action.d_output * carrier_stride_;
  if (action.d_input >= 0) call.d_input = activations + carrier_start_ + action.d_input * carrier_stride_;
  return call;
}

MicroBatch SlotMap::micro_batch(const Action& action, std::byte* data) const {
  return MicroBatch::at(data + action.activation * MicroBatch::bytes(batch_, sequence_length_, with_documents_), batch_,
                        sequence_length_, with_documents_);
}

}  // namespace gptrain
