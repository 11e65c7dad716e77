// Collectives between processes, over any transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/activity.h"
#include "comm/communicator.h"
#include "comm/transport.h"

namespace gptrain::inline comm {

// Returns the scratch bytes that a rank of a group needs to reduce: a slot per rank of at most 256 KiB, and of at least
// 16 KiB in groups so large that all slots would exceed 16 MiB. A group of one rank needs none.
int64_t exchange_scratch_bytes(int group_size);

// Scratch memory on the host. Groups whose calls come from one thread may share that of the largest group.
class ExchangeScratch {
 public:
  explicit ExchangeScratch(int group_size)
      : bytes_(exchange_scratch_bytes(group_size)),
        data_(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes_))) {}

  int64_t bytes() const { return bytes_; }
  std::byte* data() const { return data_.get(); }

 private:
  int64_t bytes_;
  std::unique_ptr<std::byte[]> data_;
};

// Returns a communicator that makes every collective of message exchanges and, for reductions, a local sum in rank
// order:
//   reduce_scatter: all-to-all, then the sum of this rank's piece (in parts that fit the scratch memory)
//   all_reduce: reduce_scatter and all-gather of uneven slices, which send at most twice the data and two elements per
//     rank over a link; for a few KiB all ranks send all data to all and sum, which saves an exchange
//   broadcast: small data from the root to all; large data scattered by the root and gathered by all
//   barrier: dissemination, in ceil(log2(size)) exchanges
// `activity`, which must not be null, is told each call, for the report if a rank is lost; `group` names the group
// there. `scratch` may be that of a larger group. If it is null, the communicator moves data, and reductions THROW
// Error(device).
std::unique_ptr<Communicator> make_exchange_communicator(std::unique_ptr<Transport> transport,
                                                         std::shared_ptr<Activity> activity, std::string group,
                                                         std::shared_ptr<ExchangeScratch> scratch);

}  // namespace gptrain::comm
