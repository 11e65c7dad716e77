// Clones of working files: the saved values of units on disk as they were when the clones were made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "parallel/parameters.h"
#include "storage/stored_files.h"

namespace gptrain::inline parallel {

// Reads blocks into memory as they are asked for, and keeps the last ones: tensors follow each other in several columns
// at a time. One thread calls all methods, which may be another one than the rank's.
class AwayClone {
 public:
  // Borrows `parameters` and `memory`, which has memory_bytes and begins at a multiple of page_bytes. `files`: see
  // AwayState::clone.
  AwayClone(const ParameterStore& parameters, std::unique_ptr<StoredFiles> files, std::span<std::byte> memory);
  // Returns the bytes of the blocks that are kept: one of the weights and one of each column. Does not need buffers.
  static int64_t memory_bytes(const ParameterStore& parameters);

  // Calls `take` with the bytes of a value in state(true) that is on disk, front to back in pieces, each valid until
  // `take` returns. THROWS as StoredFiles::read.
  void read(const void* address, int64_t bytes, const std::function<void(const std::byte*, int64_t)>& take);

 private:
  struct Block {
    size_t piece = 0, number = 0;
    int64_t last_use = 0;  // 0: empty
  };
  std::span<const std::byte> find(size_t piece, size_t number);

  const ParameterStore& parameters_;
  const std::unique_ptr<StoredFiles> files_;
  const std::span<std::byte> memory_;
  std::vector<Block> blocks_;
  int64_t uses_ = 0;
};

}  // namespace gptrain::parallel
