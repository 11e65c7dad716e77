// Optimizer state that lasts from step to step. An optimizer declares columns. Memory (parallel/parameters.h), the
// tensors in checkpoints, their loading into another layout and the rows of the dry run follow from the declaration.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/dynamic_map.h"
#include "model/spec/layout.h"

namespace gptrain::inline parallel {

// The parts of a tensor that have one value each. For row and column, queries, keys, values, gate and up are matrices
// of their own; a rank has the values of all rows and columns of its units' matrices, and the rank with a tensor's
// first element writes them to checkpoints.
enum class StateGranularity : uint8_t {
  element,
  element_outside_matrices,  // elements of all tensors except the matrices of blocks
  element_of_vectors,        // elements of tensors that are no matrices
  element_outside_blocks,    // elements of tensors without TensorSpec::has_block_state
  element_in_blocks,         // elements of tensors with has_block_state: codes
  block,                     // runs of state_block elements of tensors with has_block_state: scales of the codes
  row,                       // rows of matrices
  column,                    // columns of matrices
};

struct StateColumn {
  std::string_view name;  // its tensors in checkpoints are called "NAME/TENSOR"
  DType dtype = DType::f32;
  StateGranularity granularity = StateGranularity::element;
  bool has_sign = true;  // codes use the map with signs (base/dynamic_map.h)
};
using StateColumns = std::vector<StateColumn>;

// Name of the column of averaged weights. It is f32 and needs no other column to be read.
inline constexpr std::string_view ema_column = "ema";

// Whether a column has values for the tensor.
inline bool has_values(const StateColumn& column, const TensorSpec& tensor) {
  switch (column.granularity) {
    case StateGranularity::element:
      break;
    case StateGranularity::element_outside_matrices:
      return !tensor.of_block_matrix;
    case StateGranularity::element_of_vectors:
      return !tensor.is_matrix();
    case StateGranularity::row:
    case StateGranularity::column:
      return tensor.is_matrix();
    case StateGranularity::element_outside_blocks:
      return !tensor.has_block_state();
    case StateGranularity::element_in_blocks:
    case StateGranularity::block:
      return tensor.has_block_state();
  }
  return true;
}

// Whether a column has values only for the tensors that units end with (UnitEnd::block_state).
constexpr bool is_of_last(const StateColumn& column) {
  return column.granularity == StateGranularity::element_in_blocks || column.granularity == StateGranularity::block;
}

// Whether a column has values for the rows or columns of matrices.
constexpr bool is_factored(const StateColumn& column) {
  return column.granularity == StateGranularity::row || column.granularity == StateGranularity::column;
}

// Returns the number of values of a factored column for a tensor or unit with `rows` rows and `cols` columns.
constexpr int64_t factored_values(const StateColumn& column, int64_t rows, int64_t cols) {
  return column.granularity == StateGranularity::row ? rows : cols;
}

// Returns the shape of the column's tensor in a checkpoint. REQUIRES: has_values(column, tensor). `shard` may be of any
// tensor rank.
inline std::vector<int64_t> stored_shape(const StateColumn& column, const TensorSpec& tensor,
                                         const TensorShard& shard) {
  switch (column.granularity) {
    case StateGranularity::block:
      return {shard.blocks_total};
    case StateGranularity::row:
      return {tensor.shape[0]};
    case StateGranularity::column:
      return {tensor.num_parts() * tensor.shape[1]};
    default:
      return tensor.shape;
  }
}

// Returns the tensors that must come last in each unit for the values of every column to be contiguous.
inline UnitEnd unit_end_for(const StateColumns& columns) {
  for (const StateColumn& column : columns) {
    if (is_of_last(column)) return UnitEnd::block_state;
    if (is_factored(column)) return UnitEnd::all_matrices;
  }
  return UnitEnd::matrices;
}

// Return the number of a column's values for `elements` elements, and their bytes. REQUIRES: the column has values for
// the elements' tensor and is not factored.
constexpr int64_t column_values(const StateColumn& column, int64_t elements) {
  return column.granularity == StateGranularity::block ? (elements + state_block - 1) / state_block : elements;
}
constexpr int64_t column_bytes(const StateColumn& column, int64_t elements) {
  return column_values(column, elements) * dtype_bytes(column.dtype);
}

}  // namespace gptrain::parallel
