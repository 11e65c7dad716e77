// From the boxes of a checkpoint to the slices that are asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/boxes.h"
#include "checkpoint/contents.h"

namespace gptrain {

// One box of the checkpoint and the copies that it feeds.
struct BoxTransfer {
  const StoredBox* stored;
  std::vector<BoxCopy> copies;

  // `bytes` bytes of the box, the first of them at byte `offset` of it; in order and without gaps.
  void feed(const std::byte* data, int64_t offset, int64_t bytes);
};

// What fills the slices, in the order in which the boxes lie on the disk. Error(checkpoint), as of load_slices: the
// checkpoint cannot fill them. Borrows the contents.
std::vector<BoxTransfer> transfers_to(const Contents& contents, const std::vector<Slice>& slices);

// Reads and checks each box once. Error(checkpoint).
void run_transfers(const Contents& contents, std::vector<BoxTransfer> transfers);

}  // namespace gptrain
