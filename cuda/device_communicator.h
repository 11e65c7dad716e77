// Collectives on device memory that are queued and not waited for.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "links.h"
#include "ops/backend.h"

namespace gptrain::inline cuda {

// Returns a communicator in which the links only move data. All arithmetic is in kernels/rank_sum.h, in rank order and
// with 16-bit numbers rounded once, so that results are as Communicator promises, whatever algorithms the links'
// library chooses.
//   reduce_scatter: every rank sends each other its part (no more bytes than a ring) and sums its own in pieces: one
//     half of `scratch` receives while the other is summed
//   all_reduce: reduce_scatter and all-gather of slices, in place; small data are summed by every rank, and without
//     `in_pairs` all data, so that no rank sends to another in particular
// `scratch` is borrowed device memory of at least 16 * size bytes; a rank's groups on one stream may share it. A call
// returns once its work is queued; its buffers are free when that work is done.
std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Links> links, DeviceMemory& scratch,
                                                       bool in_pairs = true);

}  // namespace gptrain::cuda
