// Weights of a unit in codes of 8 bits, in which ranks gather them (qwZ of ZeRO++, arXiv 2306.10209).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/backend.h"

namespace gptrain::inline parallel {

// A buffer for a unit's bf16 weights that first holds their codes, in its second half. Behind the weights lie the
// scales of the codes, one for every code_block elements, and some memory for decoding. Tensors and pieces begin at
// multiples of code_block, so that codes do not depend on the number of pieces.
class CodedWeights {
 public:
  // Returns the bytes behind the weights.
  static int64_t bytes_behind(int64_t elements);

  // Borrows the buffer. REQUIRES: `elements` is a multiple of code_block.
  CodedWeights(std::byte* weights, int64_t elements) : weights_(weights), elements_(elements) {}

  // Returns the start of the codes, or of the scales, for the elements from `first` on, a multiple of code_block.
  std::byte* codes(int64_t first) const;
  std::byte* scales(int64_t first) const;
  // Encodes `weights`, the unit's elements from `first` on. A code is off by at most 1/254 of the largest
  // magnitude in its block.
  void encode(Backend& backend, const Matrix& weights, int64_t first) const;
  // Replaces the codes of all elements by their weights. Can be called once.
  void decode(Backend& backend) const;

 private:
  Matrix weights(int64_t first, int64_t count) const;

  std::byte* weights_;
  int64_t elements_;
};

}  // namespace gptrain::parallel
