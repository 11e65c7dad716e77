// An array with one element for each value of an enum class.
#pragma once

#include <array>
#include <cstddef>

namespace gptrain::inline base {

// A std::array that is also indexed by the values of Enum: EnumArray<NormKind, int, 2> sizes = {1, 2};
// sizes[NormKind::rmsnorm] == 2. REQUIRES: the values of Enum are 0, 1, ...
template <typename Enum, typename T, size_t num_values>
struct EnumArray : std::array<T, num_values> {
  using std::array<T, num_values>::operator[];
  constexpr T& operator[](Enum value) { return (*this)[static_cast<size_t>(value)]; }
  constexpr const T& operator[](Enum value) const { return (*this)[static_cast<size_t>(value)]; }
};

}  // namespace gptrain::base
