// What is asked of a library's product before its algorithm is used: see product_check.h one folder up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix.h"
#include "kernels/tiled_product.h"
#include "stream.h"

namespace gptrain {

// What a product's epilogue does beside adding the bias: nothing; c = gelu_tanh of it, which goes to pre_activation; c
// = it times gelu_tanh'(pre_activation).
enum class ProductEnd : uint8_t { plain, gelu, gelu_slope };

// c is the product, times what a_scale and b_scale point to where they are given; where `accumulate`, added to what
// product_start left there. FP8 operands may differ in their type. A factor without data is all ones.
struct ExpectedProduct {
  Product product;
  const float* a_scale = nullptr;  // of the device
  const float* b_scale = nullptr;
  ProductEnd end = ProductEnd::plain;
  Matrix pre_activation = {};
};

// What a block found of its tile: the largest distance from what the own kernel sums, as a multiple of what rounding
// explains; infinite for what is not finite and must be.
using TileDistance = float;
// Of all bits of a matrix: equal for equal ones. `unwritten`: elements that are still as product_start left them.
struct Fingerprint {
  uint64_t sum, unwritten;
};

constexpr int64_t most_checked_tiles = 64;
constexpr int64_t fingerprint_blocks = 1024;
constexpr int64_t product_check_bytes = most_checked_tiles * static_cast<int64_t>(sizeof(TileDistance)) +
                                        fingerprint_blocks * static_cast<int64_t>(sizeof(Fingerprint));

// Fills the result with what no product is made of: NaN of all ones, or, where the product is added to it, a number.
void start_result(const Matrix& result, bool accumulate, Stream stream);

// distances[t], t < the tiles that are looked at, which is returned: all of the result's tiles of 64 x 64, or
// most_checked_tiles of them, those at its corners first. Every tile is summed over the whole depth.
int64_t compare_tiles(const ExpectedProduct& expected, TileDistance* distances, Stream stream);

// parts[b], b < the number that is returned, add up to the fingerprint.
int64_t take_fingerprint(const Matrix& result, Fingerprint* parts, Stream stream);

}  // namespace gptrain
