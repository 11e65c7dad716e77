// Layout of records, which layers keep between actions, and stack memory for tensors that live inside one action.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "base/matrix.h"

namespace gptrain::inline model {

constexpr int64_t memory_alignment = 256;

constexpr int64_t align_up(int64_t bytes) {
  return (bytes + memory_alignment - 1) / memory_alignment * memory_alignment;
}

// The fields of one record, each at a fixed offset from the record's start. The schedule decides the record's address.
class RecordLayout {
 public:
  using Field = int;

  Field add(DType dtype, int64_t rows, int64_t cols) {
    fields_.push_back({bytes_, Matrix(nullptr, dtype, rows, cols)});
    bytes_ += align_up(fields_.back().shape.bytes());
    return static_cast<Field>(fields_.size()) - 1;
  }

  // RETURNS the field's matrix in the record at `record`.
  Matrix at(std::byte* record, Field field) const {
    const Entry& entry = fields_.at(static_cast<size_t>(field));
    Matrix matrix = entry.shape;
    matrix.data = record + entry.offset;
    return matrix;
  }

  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    int64_t offset;
    Matrix shape;
  };
  std::vector<Entry> fields_;
  int64_t bytes_ = 0;
};

// Memory for tensors that live inside one action, allocated and freed in stack order (WorkspaceFrame). Offsets depend
// on the calls only, so the plan's high-water mark is the real one. THROWS std::logic_error if `bytes` are exceeded.
class Workspace {
 public:
  Workspace() = default;
  Workspace(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}

  int64_t high_water_bytes() const { return high_water_; }

 private:
  friend class WorkspaceFrame;

  std::byte* take(int64_t bytes) {
    std::byte* start = data_ + top_;
    top_ += align_up(bytes);
    high_water_ = std::max(high_water_, top_);
    if (top_ > bytes_) throw std::logic_error("a step wants more workspace than its plan");
    return start;
  }

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t top_ = 0;
  int64_t high_water_ = 0;
};

// Frees, when it ends, the memory taken through it.
class WorkspaceFrame {
 public:
  explicit WorkspaceFrame(Workspace& workspace) : workspace_(workspace), top_(workspace.top_) {}
  ~WorkspaceFrame() { workspace_.top_ = top_; }
  WorkspaceFrame(const WorkspaceFrame&) = delete;
  WorkspaceFrame& operator=(const WorkspaceFrame&) = delete;

  Matrix take(DType dtype, int64_t rows, int64_t cols) {
    Matrix matrix(nullptr, dtype, rows, cols);
    matrix.data = workspace_.take(matrix.bytes());
    return matrix;
  }

 private:
  Workspace& workspace_;
  int64_t top_;
};

}  // namespace gptrain::model
