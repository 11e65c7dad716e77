// Few-bit derivatives of activations (Novikov et al., arXiv 2202.00441). The derivative is approximated by a piecewise
// constant function. Forward writes each element's piece as a code of 2, 3 or 4 bits; backward multiplies by that
// piece's value, so the activation's input need not be saved. Outputs of forward are exact, gradients are not.
//
// A code holds the piece of |x| in its low bits and the sign of x in its highest bit. The codes of 8 elements of a row
// are one little-endian integer of 8 * bits bits, the first element lowest; a row's last integer may have unused codes.
#pragma once

#include <cstdint>

#include "base/kinds.h"
#include "ops/activation_tables.h"

namespace gptrain::inline ops {

constexpr int64_t codes_in_group = 8;

// RETURNS the bytes of the codes of a row of `cols` elements.
constexpr int64_t code_bytes(int64_t cols, int bits) { return (cols + codes_in_group - 1) / codes_in_group * bits; }

constexpr bool is_code_width(int64_t bits) { return bits >= 2 && bits <= 4; }

// The pieces of |x|. A border belongs to the piece below it. For x < 0 the derivative is 1 - level, with the level of
// the piece of |x|.
template <int bits>
struct ActivationPieces {
  static constexpr int count = 1 << (bits - 1);
  float borders[count - 1];
  float levels[count];
};

// RETURNS the pieces of an activation. REQUIRES: it is gelu or gelu_tanh.
template <int bits>
constexpr ActivationPieces<bits> activation_pieces(ActivationKind kind) {
  namespace tables = activation_tables;
  const bool exact = kind == ActivationKind::gelu;
  const auto pieces = [](const auto& borders, const auto& levels) {
    ActivationPieces<bits> result{};
    for (int i = 0; i + 1 < result.count; ++i) result.borders[i] = borders[i];
    for (int i = 0; i < result.count; ++i) result.levels[i] = levels[i];
    return result;
  };
  if constexpr (bits == 2) {
    return exact ? pieces(tables::gelu_borders_2, tables::gelu_levels_2)
                 : pieces(tables::gelu_tanh_borders_2, tables::gelu_tanh_levels_2);
  } else if constexpr (bits == 3) {
    return exact ? pieces(tables::gelu_borders_3, tables::gelu_levels_3)
                 : pieces(tables::gelu_tanh_borders_3, tables::gelu_tanh_levels_3);
  } else {
    static_assert(bits == 4);
    return exact ? pieces(tables::gelu_borders_4, tables::gelu_levels_4)
                 : pieces(tables::gelu_tanh_borders_4, tables::gelu_tanh_levels_4);
  }
}

}  // namespace gptrain::ops
