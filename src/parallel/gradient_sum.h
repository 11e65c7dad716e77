// Functions of a kind of compressed sums, which its file defines.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/gradient_sums.h"
#include "model/spec/spec.h"
#include "parallel/gradient_messages.h"
#include "parallel/gradient_reducer.h"
#include "parallel/message_parts.h"

namespace gptrain::inline parallel {

// A unit with coded tensors.
struct CodedUnit {
  const CompressionConfig& compression;
  const ModelSpec& spec;
  const UnitRange& range;
  const std::vector<CodedTensor>& tensors;  // in the order of elements, at least one
};

// The functions of a kind of compressed sums (GradientSumKind).
struct GradientSum {
  // Returns whether the kind codes a large matrix; null: any.
  bool (*takes)(const CompressionConfig& compression, const TensorSpec& tensor);
  // Returns the layout of a unit's messages. Adds state that a rank keeps beside errors to the boxes and residuals.
  std::shared_ptr<const UnitLayout> (*lay_out)(const CodedUnit& unit, GradientMessages& messages);
  std::unique_ptr<GradientReducer> (*make_reducer)(const ReductionContext& context,
                                                   const GradientCompression& compression);
};

}  // namespace gptrain::parallel
