// An array with one element for each value of an enum class.
#pragma once

#include <array>
#include <cstddef>

namespace gptrain {

// REQUIRES: the values of Enum count from 0. Elements are found by value, and by position as in std::array, which the
// array is otherwise: EnumArray<NormKind, int, 2> sizes = {1, 2}; sizes[NormKind::rmsnorm] == 2.
template <typename Enum, typename T, size_t num_values>
struct EnumArray : std::array<T, num_values> {
  using std::array<T, num_values>::operator[];
  constexpr T& operator[](Enum value) { return (*this)[static_cast<size_t>(value)]; }
  constexpr const T& operator[](Enum value) const { return (*this)[static_cast<size_t>(value)]; }
};

}  // namespace gptrain
