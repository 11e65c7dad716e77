// Kernels that check a library's product before its algorithm is used: see product_check.h one folder up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix.h"
#include "kernels/tiled_product.h"
#include "stream.h"

namespace gptrain::inline cuda {

// The epilogue after the bias. plain: nothing. gelu: stores the value in pre_activation; c = gelu_tanh(value).
// gelu_slope: c = value * gelu_tanh'(pre_activation).
enum class ProductEnd : uint8_t { plain, gelu, gelu_slope };

// The reference: the product, times *a_scale and *b_scale if given, plus, if `accumulate`, the values that start_result
// left in c. FP8 operands may have different types. An operand without data is all ones.
struct ExpectedProduct {
  Product product;
  const float* a_scale = nullptr;  // device memory; null: no scales
  const float* b_scale = nullptr;
  ProductEnd end = ProductEnd::plain;
  Matrix pre_activation = {};
};

// A block's result for its tile: the largest distance from the own kernel's sum, as a multiple of the explainable
// rounding error; infinite if an element is wrongly infinite or NaN.
using TileDistance = float;
// A hash of all bits of a matrix. `unwritten`: elements that still have the value of start_result.
struct Fingerprint {
  uint64_t sum, unwritten;
};

constexpr int64_t most_checked_tiles = 64;
constexpr int64_t fingerprint_blocks = 1024;
constexpr int64_t product_check_bytes = most_checked_tiles * static_cast<int64_t>(sizeof(TileDistance)) +
                                        fingerprint_blocks * static_cast<int64_t>(sizeof(Fingerprint));

// Fills the result with a value that no product has: NaN with all bits set, or a number if the product is accumulated.
void start_result(const Matrix& result, bool accumulate, Stream stream);

// Computes distances[t] for each checked tile and returns their number: all 64 x 64 tiles of the result, or
// most_checked_tiles of them, corners first. Every tile is summed over the whole depth.
int64_t compare_tiles(const ExpectedProduct& expected, TileDistance* distances, Stream stream);

// Computes parts[b] of the fingerprint, which add up to it, and returns their number.
int64_t take_fingerprint(const Matrix& result, Fingerprint* parts, Stream stream);

}  // namespace gptrain::cuda
