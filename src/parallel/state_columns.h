// What an optimizer keeps from step to step. It declares columns, and everything else follows from the declaration:
// memory (parallel/parameters.h), what checkpoints hold and how another layout takes it up, the rows of the dry run.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/dynamic_map.h"
#include "model/spec/layout.h"

namespace gptrain {

// What there is one value for.
enum class StateGranularity : uint8_t {
  element,
  element_outside_matrices,  // of every tensor but the matrices of blocks
  element_of_vectors,        // of tensors that are no matrices
  element_outside_blocks,    // of tensors without TensorSpec::has_block_state
  element_in_blocks,         // of those with it: codes
  block,                     // of state_block elements of these: the scales of codes, in the same order of columns
  row,     // of a matrix. Every rank has all rows and columns of the matrices of its units, and the one with a tensor's
  column,  // first element writes them. Queries, keys, values, gate and up are matrices of their own.
};

// Where a column lies.
enum class StatePlace : uint8_t { device };

struct StateColumn {
  std::string_view name;  // of its tensors in checkpoints: "NAME/TENSOR"
  DType dtype = DType::f32;
  StateGranularity granularity = StateGranularity::element;
  StatePlace place = StatePlace::device;
  bool has_sign = true;  // of codes: which map they are of (base/dynamic_map.h)
};
using StateColumns = std::vector<StateColumn>;

// The column of the weights' average, where there is one: f32, complete in itself.
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

// Whether a column has values for what units end with, and for nothing else.
constexpr bool is_of_last(const StateColumn& column) {
  return column.granularity == StateGranularity::element_in_blocks || column.granularity == StateGranularity::block;
}

// Whether a column has values for the rows or columns of matrices.
constexpr bool is_factored(const StateColumn& column) {
  return column.granularity == StateGranularity::row || column.granularity == StateGranularity::column;
}

// Values of such a column for a tensor or a unit of so many rows and columns.
constexpr int64_t factored_values(const StateColumn& column, int64_t rows, int64_t cols) {
  return column.granularity == StateGranularity::row ? rows : cols;
}

// The shape of what a checkpoint has of a column that has values for the tensor, of which `shard` is any tensor rank's.
inline std::vector<int64_t> stored_shape(const StateColumn& column, const TensorSpec& tensor, const TensorShard& shard) {
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

// What units end with, so that each column's values lie together.
inline UnitEnd unit_end_for(const StateColumns& columns) {
  for (const StateColumn& column : columns) {
    if (is_of_last(column)) return UnitEnd::block_state;
    if (is_factored(column)) return UnitEnd::all_matrices;
  }
  return UnitEnd::matrices;
}

// Values of a column for `elements` elements of a tensor that it has values for, and their bytes.
constexpr int64_t column_values(const StateColumn& column, int64_t elements) {
  return column.granularity == StateGranularity::block ? (elements + state_block - 1) / state_block : elements;
}
constexpr int64_t column_bytes(const StateColumn& column, int64_t elements) {
  return column_values(column, elements) * dtype_bytes(column.dtype);
}

}  // namespace gptrain
