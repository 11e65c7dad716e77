#include "model/layer_records.h"

#include <stdexcept>

#include "base/enum_array.h"

namespace gptrain::inline model {

LayerLayout::Field LayerLayout::declare(RecordKind record, const SavedTensor& tensor) {
  if (!stored_.empty()) throw std::logic_error("a layer declares '" + tensor.name + "' after its records are laid out");
  records_.entries.push_back({record, tensor, 0});
  return static_cast<Field>(records_.entries.size()) - 1;
}

LayerLayout::Field LayerLayout::save(const SavedTensor& tensor) {
  const bool for_weight = tensor.last_reader == LastReader::weight_gradient;
  return declare(for_weight ? RecordKind::saved_for_weight : RecordKind::saved_for_input, tensor);
}

LayerLayout::Field LayerLayout::save_for_recompute_if(const SavedTensor& tensor, bool is_read_by_recompute) {
  return is_read_by_recompute ? declare(RecordKind::saved_for_recompute, tensor) : save(tensor);
}

LayerLayout::Field LayerLayout::leave(SavedTensor tensor) {
  tensor.last_reader = LastReader::weight_gradient;
  return declare(RecordKind::gradients, tensor);
}

LayerLayout::Field LayerLayout::prepare(const SavedTensor& tensor) { return declare(RecordKind::fp8_weights, tensor); }

void LayerLayout::read_by_weight(Field field) {
  LayerRecords::Entry& entry = records_.entries.at(static_cast<size_t>(field));
  entry.tensor.last_reader = LastReader::weight_gradient;
  if (entry.record == RecordKind::saved_for_input) entry.record = RecordKind::saved_for_weight;
}

LayerRecords& LayerLayout::finish() {
  for (LayerRecords::Entry& entry : records_.entries) {
    RecordLayout& layout = layouts_[entry.record];
    const int64_t before = layout.bytes();
    stored_.push_back(codec_type(entry.tensor.codec).add(layout, entry.tensor));
    entry.bytes = layout.bytes() - before;
  }
  const auto bytes = [this](RecordKind record) { return layouts_[record].bytes(); };
  records_.saved_for_recompute_bytes = bytes(RecordKind::saved_for_recompute);
  records_.saved_for_input_bytes = bytes(RecordKind::saved_for_input);
  records_.saved_for_weight_bytes = bytes(RecordKind::saved_for_weight);
  records_.gradients_bytes = bytes(RecordKind::gradients);
  records_.fp8_weights_bytes = bytes(RecordKind::fp8_weights);
  return records_;
}

Matrix LayerLayout::in_record(const LayerCall& call, RecordKind record, RecordLayout::Field field) const {
  const EnumArray<RecordKind, std::byte*, num_record_kinds> records = {
      call.saved_for_recompute, call.saved_for_input, call.saved_for_weight, call.gradients, call.fp8_weights};
  const auto index = static_cast<size_t>(record);
  return layouts_[index].at(records[index], field);
}

Matrix LayerLayout::at(const LayerCall& call, Field field) const {
  const auto index = static_cast<size_t>(field);
  return in_record(call, records_.entries.at(index).record, stored_.at(index).data);
}

Matrix LayerLayout::scale_at(const LayerCall& call, Field field) const {
  const auto index = static_cast<size_t>(field);
  return in_record(call, records_.entries.at(index).record, stored_.at(index).scale);
}

}  // namespace gptrain::model
