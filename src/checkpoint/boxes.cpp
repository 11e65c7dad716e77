#include "checkpoint/boxes.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <iterator>
#include <map>

#include "base/error.h"

namespace gptrain::inline checkpoint {
namespace {

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d > 1; --d) strides[d - 2] = strides[d - 1] * shape[d - 1];
  return strides;
}

// Range of a box in one dim. Dims that the box lacks are one element wide.
struct Extent {
  int64_t begin, end;
};

Extent extent(const Box& box, size_t dim) {
  if (dim >= box.shape.size()) return {0, 1};
  return {box.offset[dim], box.offset[dim] + box.shape[dim]};
}

constexpr size_t row_axis = 0, column_axis = 1;

using Overlap = std::optional<std::pair<size_t, size_t>>;

// Compares pairs of boxes with any number of dims. `order` lists the boxes by their first rows.
Overlap find_overlap_by_pairs(const std::vector<Box>& boxes, const std::vector<size_t>& order) {
  constexpr int64_t most_compared = 20'000'000;  // some seconds
  int64_t compared = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t end = extent(boxes[order[i]], row_axis).end;
    for (size_t j = i + 1; j < order.size() && extent(boxes[order[j]], row_axis).begin < end; ++j) {
      if (intersect(boxes[order[i]], boxes[order[j]])) return std::minmax(order[i], order[j]);
      if (++compared > most_compared)
        throw Error(ExitCode::checkpoint, "a tensor of {} dims has {} slices, too many to check that none overlap",
                    boxes.front().shape.size(), boxes.size());
    }
  }
  return std::nullopt;
}

// Sweeps over the rows of boxes with up to two dims. `order` lists the boxes by their first rows. The boxes that cover
// the current row lie side by side, so each new box is compared with its neighbours only, and the time is never
// quadratic.
Overlap find_overlap_by_rows(const std::vector<Box>& boxes, const std::vector<size_t>& order) {
  std::map<int64_t, size_t> present;    // boxes that cover the current row, by first column
  std::multimap<int64_t, size_t> ends;  // the same boxes, by the row after their last
  for (const size_t i : order) {
    while (!ends.empty() && ends.begin()->first <= extent(boxes[i], row_axis).begin) {
      present.erase(extent(boxes[ends.begin()->second], column_axis).begin);
      ends.erase(ends.begin());
    }
    const Extent own = extent(boxes[i], column_axis);
    const auto behind = present.lower_bound(own.begin);
    if (behind != present.end() && behind->first < own.end) return std::minmax(i, behind->second);
    if (behind != present.begin() && extent(boxes[std::prev(behind)->second], column_axis).end > own.begin)
      return std::minmax(i, std::prev(behind)->second);
    present.emplace(own.begin, i);
    ends.emplace(extent(boxes[i], row_axis).end, i);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> num_elements(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(product, dim, &product)) return std::nullopt;
  }
  return product;
}

std::string join_numbers(const std::vector<int64_t>& numbers, std::string_view separator) {
  std::string text;
  for (const int64_t number : numbers) {
    if (!text.empty()) text += separator;
    text += std::to_string(number);
  }
  return text;
}

std::string format_shape(const std::vector<int64_t>& shape) { return fmt::format("[{}]", join_numbers(shape, ", ")); }

bool is_inside(const Box& box, const std::vector<int64_t>& global_shape) {
  if (box.offset.size() != global_shape.size() || box.shape.size() != global_shape.size()) return false;
  for (size_t d = 0; d < global_shape.size(); ++d) {
    if (box.offset[d] < 0 || box.shape[d] < 0 || box.offset[d] > global_shape[d]) return false;
    if (box.shape[d] > global_shape[d] - box.offset[d]) return false;
  }
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box shared;
  for (size_t d = 0; d < a.shape.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    if (begin >= end) return std::nullopt;
    shared.offset.push_back(begin);
    shared.shape.push_back(end - begin);
  }
  return shared;
}

std::optional<std::pair<size_t, size_t>> find_overlap(const std::vector<Box>& boxes) {
  std::vector<size_t> order;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (num_elements(boxes[i].shape) != 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) {
    return extent(boxes[i], row_axis).begin < extent(boxes[j], row_axis).begin;
  });
  const bool in_a_plane = boxes.empty() || boxes.front().shape.size() <= 2;
  return in_a_plane ? find_overlap_by_rows(boxes, order) : find_overlap_by_pairs(boxes, order);
}

BoxCopy::BoxCopy(const Box& source, const Box& target, DType dtype, void* target_data, SliceMemory* memory)
    : dtype_(dtype), target_data_(static_cast<std::byte*>(target_data)), memory_(memory) {
  const auto shared = intersect(source, target);
  if (!shared) return;
  pending_ = true;
  const auto source_strides = row_major_strides(source.shape);
  const auto target_strides = row_major_strides(target.shape);
  for (size_t d = 0; d < source.shape.size(); ++d) {
    source_at_ += (shared->offset[d] - source.offset[d]) * source_strides[d];
    target_at_ += (shared->offset[d] - target.offset[d]) * target_strides[d];
  }
  // A run covers the innermost dims in which the shared part is as wide as both boxes, and the next dim outside them.
  size_t loops = source.shape.size();
  bool contiguous = true;
  while (loops > 0 && contiguous) {
    --loops;
    run_ *= shared->shape[loops];
    contiguous = shared->shape[loops] == source.shape[loops] && shared->shape[loops] == target.shape[loops];
  }
  for (size_t d = 0; d < loops; ++d) loops_.push_back({shared->shape[d], 0, source_strides[d], target_strides[d]});
}

void BoxCopy::feed(int64_t first, const void* elements, int64_t count) {
  const int64_t element = dtype_bytes(dtype_);
  while (pending_) {
    const int64_t begin = source_at_ + copied_;
    if (begin >= first + count) return;
    const int64_t n = std::min(run_ - copied_, first + count - begin);
    std::byte* const to = target_data_ + (target_at_ + copied_) * element;
    const std::byte* const from = static_cast<const std::byte*>(elements) + (begin - first) * element;
    if (memory_ != nullptr) {
      memory_->write(to, from, n * element);
    } else {
      std::memcpy(to, from, n * element);
    }
    copied_ += n;
    if (copied_ == run_) next_run();
  }
}

void BoxCopy::next_run() {
  copied_ = 0;
  for (size_t d = loops_.size(); d > 0; --d) {
    Loop& loop = loops_[d - 1];
    source_at_ += loop.source_stride;
    target_at_ += loop.target_stride;
    if (++loop.index < loop.count) return;
    source_at_ -= loop.count * loop.source_stride;
    target_at_ -= loop.count * loop.target_stride;
    loop.index = 0;
  }
  pending_ = false;
}

}  // namespace gptrain::checkpoint
