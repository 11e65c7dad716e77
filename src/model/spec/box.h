// Boxes of a tensor: ranges of its rows and columns.
#pragma once

#include <cstdint>
#include <vector>

namespace gptrain::inline spec {

// Elements offset[d] <= i[d] < offset[d] + shape[d] of a tensor. No dims: the one element of a scalar.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;

  int64_t count() const {  // number of elements
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
};

// RETURNS the box that is the whole tensor.
inline Box whole_box(const std::vector<int64_t>& shape) { return {std::vector<int64_t>(shape.size(), 0), shape}; }

}  // namespace gptrain::spec
