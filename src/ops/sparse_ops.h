// The largest elements of a vector, as indices and values.
#pragma once

#include <string_view>

#include "base/matrix.h"

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

}  // namespace gptrain::ops
