// Tensors that a layer keeps between its actions, declared one by one and laid out in records by their last reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/enum_array.h"
#include "base/kinds.h"
#include "model/codec.h"
#include "model/layer_call.h"
#include "model/record.h"
#include "model/saved_tensor.h"
#include "schedule/operands.h"

namespace gptrain::inline model {

// The records of a layer. Each micro-batch has its own, except fp8_weights, which is computed from the weights.
enum class RecordKind : uint8_t {
  saved_for_recompute,  // written by forward, read by recompute and B; with SavedPart::attention W is the last reader
  saved_for_input,      // written by forward and recompute, dead when B is over
  saved_for_weight,     // written by forward and recompute; W is the last to read it, B may
  gradients,            // written by B (in the head by the loss, too), read by W
  fp8_weights,          // linears' weights, quantized to FP8
};
constexpr size_t num_record_kinds = static_cast<size_t>(RecordKind::fp8_weights) + 1;

// All that a schedule knows of a layer: the sizes of its records, and the passes that use each buffer. Records of equal
// layers compare equal.
struct LayerRecords {
  int64_t saved_for_recompute_bytes = 0;
  int64_t saved_for_input_bytes = 0;
  int64_t saved_for_weight_bytes = 0;
  int64_t gradients_bytes = 0;
  int64_t fp8_weights_bytes = 0;
  // True: the layer reads the amax after d_output (see LayerCall::d_output).
  bool wants_output_gradient_amax = false;
  UnitUses uses{};

  // A declared tensor and the record that holds it.
  struct Entry {
    RecordKind record;
    SavedTensor tensor;
    int64_t bytes;  // stored size

    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;

  const OperandUse& use(UnitPass pass) const { return uses[pass]; }
  OperandUse& use_of(UnitPass pass) { return uses[pass]; }

  bool operator==(const LayerRecords&) const = default;
};

// Collects the declarations of one layer's parts, then gives each tensor's memory. REQUIRES: all declarations come
// before `finish`, all look-ups after it (else THROWS std::logic_error).
class LayerLayout {
 public:
  using Field = int;
  static constexpr Field none = -1;

  explicit LayerLayout(SavedPart saved_part) : saved_part_(saved_part) {}
  bool saves_part() const { return saved_part_ != SavedPart::nothing; }
  bool saves_products() const { return saved_part_ == SavedPart::products; }
  bool saves_attention() const { return saved_part_ == SavedPart::attention; }

  Field save(const SavedTensor& tensor);
  // Declare a tensor that forward saves for its last reader. If the layer saves products (save_product), attention
  // (save_attention) or either (save_product_of_attention), recompute reads the tensor and does not write it: it is in
  // `saved_for_recompute`. REQUIRES for save_product: the last reader is B.
  Field save_product(const SavedTensor& tensor) { return save_for_recompute_if(tensor, saves_products()); }
  Field save_attention(const SavedTensor& tensor) { return save_for_recompute_if(tensor, saves_attention()); }
  Field save_product_of_attention(const SavedTensor& tensor) { return save_for_recompute_if(tensor, saves_part()); }
  // Declares a tensor that B writes for W.
  Field leave(SavedTensor tensor);
  // Declares a weight quantized to FP8.
  Field prepare(const SavedTensor& tensor);
  // Declares that W reads the field, which may belong to another part of the layer.
  void read_by_weight(Field field);
  void want_output_gradient_amax() { records_.wants_output_gradient_amax = true; }

  // Ends the declarations. RETURNS the records, in which the layer then sets the buffers that its passes use.
  LayerRecords& finish();
  const LayerRecords& records() const { return records_; }
  const SavedTensor& tensor(Field field) const { return records_.entries.at(static_cast<size_t>(field)).tensor; }

  // RETURN the stored matrix of a field in the call's records, with Codec::fp8 [cols, rows]; and its inverse scale, [1,
  // 1] f32, or with Codec::blocks its scales.
  Matrix at(const LayerCall& call, Field field) const;
  Matrix scale_at(const LayerCall& call, Field field) const;

 private:
  Field declare(RecordKind record, const SavedTensor& tensor);
  Field save_for_recompute_if(const SavedTensor& tensor, bool is_read_by_recompute);
  Matrix in_record(const LayerCall& call, RecordKind record, RecordLayout::Field field) const;

  const SavedPart saved_part_;
  LayerRecords records_;
  EnumArray<RecordKind, RecordLayout, num_record_kinds> layouts_;
  std::vector<StoredFields> stored_;  // one for each field; filled by finish
};

}  // namespace gptrain::model
