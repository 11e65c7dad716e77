// The largest elements of a vector, as indices and values, and count sketches that estimate them.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "base/philox.h"
#include "ops/step_state.h"

namespace gptrain::inline ops {

// Selects the k elements of x with the largest magnitudes, of equal ones those with the lowest indices, in the order of
// their indices. Infinity and NaN count as the largest. Elements that are left out have at most the magnitudes of
// selected ones, and the sum of their squares is at most 1 - k / n of that of x.
struct SelectLargest {
  static constexpr std::string_view name = "select_largest";
  Matrix x;        // [1, n] f32, n < 2^31
  Matrix indices;  // [1, k] i32 out, k <= n
  Matrix values;   // [1, k] f32 out: the elements
};

// to[indices[i]] += factor * values[i]. REQUIRES: indices rise.
struct AddAt {
  static constexpr std::string_view name = "add_at";
  Matrix indices;  // [1, k] i32
  Matrix values;   // [1, k] f32
  float factor = 1;
  Matrix to;  // [1, n] f32, in and out
};

// values[i] = from[indices[i]].
struct TakeAt {
  static constexpr std::string_view name = "take_at";
  Matrix indices;  // [1, k] i32
  Matrix from;     // [1, n] f32
  Matrix values;   // [1, k] f32 out
};

constexpr int64_t most_sketch_rows = 32;

// The hash functions of one row of a count sketch, by multiply-add-shift (Dietzfelbinger 1996): of element i,
//   z = a i + b mod 2^64, sign = -1 if bit 63 of z is set, else 1, column = (bits 32 to 62 of z) * columns / 2^31.
// Signs and columns of any two elements below 2^32 are independent for random a and b.
class SketchRow {
 public:
  // The words of a and b, low ones first, are those of philox(key, {low(updates), high(updates), row, 0}).
  constexpr SketchRow(PhiloxKey key, int64_t updates, int64_t row) {
    const auto words = philox(
        key, {static_cast<uint32_t>(updates), static_cast<uint32_t>(updates >> 32), static_cast<uint32_t>(row), 0});
    a_ = words[0] | uint64_t{words[1]} << 32;
    b_ = words[2] | uint64_t{words[3]} << 32;
  }

  struct Place {
    int64_t column;
    bool is_negative;
  };
  constexpr Place of(int64_t element, int64_t columns) const {
    const uint64_t z = a_ * static_cast<uint64_t>(element) + b_;
    const uint64_t bits = z >> 32 & 0x7fffffffU;
    return {static_cast<int64_t>(bits * static_cast<uint64_t>(columns) >> 31), z >> 63 != 0};
  }

 private:
  uint64_t a_ = 0, b_ = 0;
};

// Writes a count sketch (Charikar, Chen, Farach-Colton, ICALP 2002): table[r][c] is the sum of sign_r(i) x[i] over the
// elements i with column_r(i) = c (SketchRow of r and state->updates), in f32 in the order of elements: off by at most
// m 2^-24 times the sum of |x[i]|, for m elements. The sum of the sketches of several vectors is that of their sum.
struct CountSketch {
  static constexpr std::string_view name = "count_sketch";
  const StepState* state = nullptr;
  PhiloxKey key;
  Matrix x;      // [1, n] f32, n < 2^31
  Matrix table;  // [rows, columns] f32 out, at most most_sketch_rows rows
};

// estimates[i] = median over rows r of sign_r(i) table[r][column_r(i)], with an even number of rows the mean of the two
// in the middle. If x was sketched without rounding, the mean square of one row's error is at most |x|^2 / columns
// over random hash functions, and with R rows the error exceeds t |x| / sqrt(columns) with a probability of at most
// (2 / t)^R. Infinity and NaN in x make their own estimates infinity or NaN.
struct EstimateSketch {
  static constexpr std::string_view name = "estimate_sketch";
  const StepState* state = nullptr;
  PhiloxKey key;
  Matrix table;      // [rows, columns] f32, at most most_sketch_rows rows
  Matrix estimates;  // [1, n] f32 out
};

// Ops that CUDA has no kernels for yet.
#define GPTRAIN_FOR_EACH_SPARSE_OP(X) X(SelectLargest) X(AddAt) X(TakeAt) X(CountSketch) X(EstimateSketch)

}  // namespace gptrain::ops
