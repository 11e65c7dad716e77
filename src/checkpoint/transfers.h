// Transfers from the slices of a checkpoint to those of a rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/boxes.h"
#include "checkpoint/contents.h"

namespace gptrain::inline checkpoint {

// A slice of the checkpoint, and the parts of a rank's slices that its elements fill.
struct SliceTransfer {
  const Slice* stored;
  std::vector<BoxCopy> copies;
  int64_t num_not_finite = 0;  // numbers taken that are NaN or infinite

  // Takes `bytes` bytes of `stored` from its byte `offset` on. REQUIRES: called in order and without gaps.
  void feed(const std::byte* data, int64_t offset, int64_t bytes);
};

// Returns the transfers that fill a rank's slices, in the order of the checkpoint's slices on the disk. Borrows the
// contents. THROWS Error(checkpoint) like load_slices if the checkpoint cannot fill them.
std::vector<SliceTransfer> slice_transfers(const Contents& contents, const std::vector<Slice>& slices);

// THROWS Error(diverged) if a number of the transfer's slice is not finite. Call it once the slice is read and its
// checksum compared.
void require_finite(const Contents& contents, const SliceTransfer& transfer);

// Fills a rank's slices: reads each slice of the checkpoint once and compares its checksum. THROWS Error(checkpoint),
// and with NotFinite::refused as require_finite does.
void run_transfers(const Contents& contents, std::vector<SliceTransfer> transfers,
                   NotFinite not_finite = NotFinite::refused);

}  // namespace gptrain::checkpoint
