// Boxes of a global tensor: what a checkpoint's slices are, and how one layout's slices fill another's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"

namespace gptrain {

// Elements offset[d] <= i[d] < offset[d] + shape[d] of a global tensor. No dims: the one element of a scalar.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
};

// Product of the dims; nothing if one is negative or if the product does not fit.
std::optional<int64_t> num_elements(const std::vector<int64_t>& shape);

// "768,2304"
std::string join_numbers(const std::vector<int64_t>& numbers, std::string_view separator);

// "[768, 2304]"
std::string format_shape(const std::vector<int64_t>& shape);

// Whether offset and shape have the tensor's number of dims and lie inside it.
bool is_inside(const Box& box, const std::vector<int64_t>& global_shape);

// What two boxes of one tensor share; nothing if that has no elements.
std::optional<Box> intersect(const Box& a, const Box& b);

// Two boxes of one tensor that share an element, as positions in the list, if there are such. In n log n for up to two
// dims. Error(checkpoint): of more dims, too many to compare.
std::optional<std::pair<size_t, size_t>> find_overlap(const std::vector<Box>& boxes);

// Memory that copies reach by calls of their own, as a device's.
class SliceMemory {
 public:
  virtual ~SliceMemory() = default;
  // Passes the bytes on from front to back, in pieces that `take` may use until it returns.
  using Take = std::function<void(const std::byte* piece, int64_t bytes)>;
  virtual void read(const std::byte* from, int64_t bytes, const Take& take) = 0;
  virtual void write(std::byte* to, const std::byte* from, int64_t bytes) = 0;
};

// Copies what a source box shares with a target box, while the source's elements arrive from front to back in pieces.
// Both boxes are stored in row-major order.
class BoxCopy {
 public:
  // `target_data` holds the target box, in `memory` (null: the host's); the caller owns both.
  BoxCopy(const Box& source, const Box& target, DType dtype, void* target_data, SliceMemory* memory = nullptr);

  DType dtype() const { return dtype_; }

  // Whether anything is left to copy.
  bool pending() const { return pending_; }

  // The source's elements [first, first + count), the pieces in order and without gaps.
  void feed(int64_t first, const void* elements, int64_t count);

 private:
  // A dim over which the contiguous runs repeat.
  struct Loop {
    int64_t count;
    int64_t index;
    int64_t source_stride;
    int64_t target_stride;
  };

  void next_run();

  DType dtype_;
  std::byte* target_data_;
  SliceMemory* memory_;
  std::vector<Loop> loops_;  // outermost first
  int64_t run_ = 1;          // elements that are contiguous in both boxes
  int64_t copied_ = 0;       // of the current run
  int64_t source_at_ = 0;    // where the current run begins
  int64_t target_at_ = 0;
  bool pending_ = false;
};

}  // namespace gptrain
