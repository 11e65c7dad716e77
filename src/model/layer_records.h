// What a layer keeps between its actions: declared tensor by tensor, laid out in records by who reads them last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model/layer_call.h"
#include "model/record.h"
#include "schedule/operands.h"

namespace gptrain {

// Which pass reads a saved tensor last: B, the gradient of the layer's input, or W, the gradients of its weights.
enum class LastReader : uint8_t { input_gradient, weight_gradient };

// How a tensor is stored.
enum class Codec : uint8_t {
  plain,
  // Transposed, in one of the FP8 formats, and behind that its inverse scale (ops.h: Quantize): as a weight's gradient
  // reads it.
  fp8,
  // Codes of 8 bits, and behind them the scales of their blocks (ops/block_codes.h).
  blocks,
  // Rounded to a narrower type.
  rounded,
};

// Whose memory holds it.
enum class SavedPlace : uint8_t { device };

// The records of a layer. A micro-batch has one of each but the last, which is made from the weights.
enum class RecordKind : uint8_t {
  kept,              // written by forward, read by recompute and B, dead when B is over
  saved_for_input,   // written by forward and recompute, dead when B is over
  saved_for_weight,  // written by forward and recompute; W is the last to read it, B may
  gradients,         // written by B (in the head by the loss, too), read by W
  fp8_weights,       // copies of the weights of FP8 linears
};
constexpr size_t num_record_kinds = static_cast<size_t>(RecordKind::fp8_weights) + 1;

// A tensor that a layer saves.
struct SavedTensor {
  std::string name;
  DType dtype;         // of what is stored; with Codec::blocks of what is coded
  int64_t rows, cols;  // of the tensor
  Codec codec = Codec::plain;
  LastReader last_reader = LastReader::input_gradient;
  SavedPlace place = SavedPlace::device;

  bool operator==(const SavedTensor&) const = default;
};

// What a schedule has to know of a layer: the sizes of its records and the lifetimes of all its buffers. Records of
// equal layers compare equal.
struct LayerRecords {
  int64_t kept_bytes = 0;
  int64_t saved_for_input_bytes = 0;
  int64_t saved_for_weight_bytes = 0;
  int64_t gradients_bytes = 0;
  int64_t fp8_weights_bytes = 0;
  // The layer wants the amax of d_output behind it (see LayerCall::d_output).
  bool wants_output_gradient_amax = false;
  UnitUses uses{};

  // All that is declared, in the order of declaration, and the record that holds it.
  struct Entry {
    RecordKind record;
    SavedTensor tensor;
    int64_t bytes;  // as stored

    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;

  const OperandUse& use(UnitPass pass) const { return uses[static_cast<size_t>(pass)]; }
  OperandUse& use_of(UnitPass pass) { return uses[static_cast<size_t>(pass)]; }

  bool operator==(const LayerRecords&) const = default;
};

// Collects the declarations of one layer's parts, then knows where each tensor lies. All declarations come before
// `finish`, all look-ups after it (else std::logic_error).
class LayerLayout {
 public:
  using Field = int;
  static constexpr Field none = -1;

  // `keeps_products`: StepShape::keeps_products.
  explicit LayerLayout(bool keeps_products) : keeps_products_(keeps_products) {}
  bool keeps_products() const { return keeps_products_; }

  // A tensor that forward saves for the pass that reads it last.
  Field save(const SavedTensor& tensor);
  // A product's output that forward saves and only B reads. A layer that keeps products keeps it for recompute, too.
  Field save_product(const SavedTensor& tensor);
  // A tensor that B leaves for W.
  Field leave(SavedTensor tensor);
  // A part of the copies of weights.
  Field prepare(const SavedTensor& tensor);
  // Says that W reads the field, whoever declared it.
  void read_by_weight(Field field);
  void want_output_gradient_amax() { records_.wants_output_gradient_amax = true; }

  // Which buffers the passes use follows from the declarations and the kind; the layer says so.
  LayerRecords& finish();
  const LayerRecords& records() const { return records_; }
  const SavedTensor& tensor(Field field) const { return records_.entries.at(static_cast<size_t>(field)).tensor; }

  // The stored matrix of a field in the call's records (with Codec::fp8 [cols, rows]), and its inverse scale, [1, 1]
  // f32, or its scales.
  Matrix at(const LayerCall& call, Field field) const;
  Matrix scale_at(const LayerCall& call, Field field) const;

 private:
  struct Stored {
    RecordLayout::Field data = -1, scale = -1;
  };

  // The parts that a tensor is stored in, by its codec.
  static Stored add_stored(RecordLayout& layout, const SavedTensor& tensor);
  Field declare(RecordKind record, const SavedTensor& tensor);
  Matrix in_record(const LayerCall& call, RecordKind record, RecordLayout::Field field) const;

  const bool keeps_products_;
  LayerRecords records_;
  std::array<RecordLayout, num_record_kinds> layouts_;
  std::vector<Stored> stored_;  // by field; filled by finish
};

}  // namespace gptrain
