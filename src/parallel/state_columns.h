// What an optimizer keeps from step to step. It declares columns, and everything else follows from the declaration:
// memory (parallel/parameters.h), what checkpoints hold and how another layout takes it up, the rows of the dry run.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "model/spec/spec.h"

namespace gptrain {

// What there is one value for.
enum class StateGranularity : uint8_t {
  element,
  element_outside_matrices,  // of every tensor but the matrices of blocks
};

// Where a column lies.
enum class StatePlace : uint8_t { device };

struct StateColumn {
  std::string_view name;  // of its tensors in checkpoints: "NAME/TENSOR"
  DType dtype = DType::f32;
  StateGranularity granularity = StateGranularity::element;
  StatePlace place = StatePlace::device;
};
using StateColumns = std::vector<StateColumn>;

// The column of the weights' average, where there is one: f32, complete in itself.
inline constexpr std::string_view ema_column = "ema";

// Whether a column has values for the tensor.
constexpr bool has_values(const StateColumn& column, const TensorSpec& tensor) {
  return column.granularity == StateGranularity::element || !tensor.of_block_matrix;
}

// Bytes of a column's values for `elements` elements of a tensor that it has values for.
constexpr int64_t column_bytes(const StateColumn& column, int64_t elements) {
  return elements * dtype_bytes(column.dtype);
}

}  // namespace gptrain
