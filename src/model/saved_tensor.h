// A tensor that a layer saves between its actions.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "schedule/layer_choices.h"

namespace gptrain::inline model {

// The pass that reads a saved tensor last: B, the gradient of the layer's input, or W, the gradients of its weights.
enum class LastReader : uint8_t { input_gradient, weight_gradient };

// Memory that holds a saved tensor.
enum class SavedPlace : uint8_t { device };

// A tensor that a layer saves.
struct SavedTensor {
  std::string name;
  DType dtype;         // stored dtype; with Codec::blocks, dtype of the decoded tensor
  int64_t rows, cols;  // shape before encoding
  Codec codec = Codec::plain;
  LastReader last_reader = LastReader::input_gradient;
  SavedPlace place = SavedPlace::device;

  bool operator==(const SavedTensor&) const = default;
};

}  // namespace gptrain::model
