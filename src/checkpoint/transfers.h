// Transfers from the boxes of a checkpoint to slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/boxes.h"
#include "checkpoint/contents.h"

namespace gptrain::inline checkpoint {

// A box of the checkpoint, and the parts of slices that its elements fill.
struct SliceTransfer {
  const StoredSlice* stored;
  std::vector<BoxCopy> copies;

  // Takes `bytes` bytes of the box from its byte `offset` on. REQUIRES: called in order and without gaps.
  void feed(const std::byte* data, int64_t offset, int64_t bytes);
};

// Returns the transfers that fill the slices, in the order of the boxes on the disk. Borrows the contents. THROWS
// Error(checkpoint) like load_slices if the checkpoint cannot fill them.
std::vector<SliceTransfer> slice_transfers(const Contents& contents, const std::vector<Slice>& slices);

// Fills the slices: reads each box once and compares its checksum. THROWS Error(checkpoint).
void run_transfers(const Contents& contents, std::vector<SliceTransfer> transfers);

}  // namespace gptrain::checkpoint
