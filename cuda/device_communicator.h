// Collectives on device memory, queued and not awaited.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "links.h"
#include "ops/backend.h"

namespace gptrain {

// The links only move: all arithmetic is the kernel's of kernels/rank_sum.h, in rank order and with 16-bit numbers
// rounded once, so that results are those that Communicator promises, whatever algorithms the links' library chooses.
//   reduce_scatter: every rank sends each its part (no more bytes than a ring), and sums its own in pieces that come into
//     one half of `scratch` while those in the other half are summed
//   all_reduce: reduce_scatter and all-gather of slices, in place; of what is small, everybody sums everything
// Groups of one rank that are used in one stream may share the scratch memory (borrowed), which is device memory of at
// least 16 * size bytes. A call returns when its work is queued; its buffers are free when that is over.
std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Links> links, DeviceMemory& scratch);

}  // namespace gptrain
