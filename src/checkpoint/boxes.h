// Boxes of a global tensor: they describe a checkpoint's slices, and one layout's boxes fill another's.
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
#include "model/spec/box.h"

namespace gptrain::inline checkpoint {

// Returns the product of the dims, 1 without dims; none if a dim is negative or the product overflows.
std::optional<int64_t> num_elements(const std::vector<int64_t>& shape);

// Returns the numbers as text: "768,2304" for the separator ",".
std::string join_numbers(const std::vector<int64_t>& numbers, std::string_view separator);

// Returns "[768, 2304]".
std::string format_shape(const std::vector<int64_t>& shape);

// Returns true if offset and shape have the tensor's number of dims and lie inside it.
bool is_inside(const Box& box, const std::vector<int64_t>& global_shape);

// Returns the intersection of two boxes of one tensor; none if it is empty.
std::optional<Box> intersect(const Box& a, const Box& b);

// Returns the indices of two boxes of one tensor that share an element; none if no boxes do. Takes n log n time for up
// to two dims. THROWS Error(checkpoint) if boxes of more dims are too many to compare.
std::optional<std::pair<size_t, size_t>> find_overlap(const std::vector<Box>& boxes);

// Memory that only its own copy functions can read and write, such as a device's.
class SliceMemory {
 public:
  virtual ~SliceMemory() = default;
  using Take = std::function<void(const std::byte* piece, int64_t bytes)>;
  // Calls `take` with the bytes at `from`, front to back in pieces of host memory, each valid until `take` returns.
  // Queued ops that write them are done before. Calls come from one thread.
  virtual void read(const std::byte* from, int64_t bytes, const Take& take) = 0;
  // Copies bytes of the host to `to`; `from` may be reused afterwards.
  virtual void write(std::byte* to, const std::byte* from, int64_t bytes) = 0;
};

// Copies the intersection of a source box and a target box, while the source's elements arrive from front to back in
// pieces. Both boxes are stored in row-major order.
class BoxCopy {
 public:
  // `source` and `target` are boxes of the same tensor, with as many dims. `target_data` holds the target box, in
  // `memory` (null: host memory); the caller owns both.
  BoxCopy(const Box& source, const Box& target, DType dtype, void* target_data, SliceMemory* memory = nullptr);

  DType dtype() const { return dtype_; }

  // Returns true if anything is left to copy.
  bool pending() const { return pending_; }

  // Takes the source's elements [first, first + count), counted in row-major order of the source box. REQUIRES: pieces
  // come in order and without gaps. Elements outside the target are ignored.
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
  int64_t copied_ = 0;       // elements copied of the current run
  int64_t source_at_ = 0;    // first element of the current run in the source
  int64_t target_at_ = 0;    // first element of the current run in the target
  bool pending_ = false;
};

}  // namespace gptrain::checkpoint
