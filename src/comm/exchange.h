// Collectives between processes, over any transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/activity.h"
#include "comm/communicator.h"
#include "comm/transport.h"

namespace gptrain {

// What a rank of a group of this size receives in what it reduces: a slot for every rank, of at most 256 KiB, and of at
// least 16 KiB in groups so large that all would take more than 16 MiB.
int64_t exchange_scratch_bytes(int group_size);

// That memory, of the host. Groups whose calls come from one thread may share that of the largest.
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

// Every collective is an exchange of messages and, for reductions, a local sum in rank order:
//   reduce_scatter: all-to-all, then the sum of this rank's piece (in pieces that fit the scratch memory)
//   all_reduce: reduce_scatter and all-gather of uneven slices, of which a link carries twice the data and two elements
//     for each rank at most; a small one gathers all and sums all, one exchange less, as long as that is some KiB
//   broadcast: a small one from the root to all, a large one scattered by the root and gathered by all
//   barrier: dissemination, in ceil(log2(size)) exchanges
// `group` names the group in reports. Without scratch memory it moves data and reduces nothing.
std::unique_ptr<Communicator> make_exchange_communicator(std::unique_ptr<Transport> transport,
                                                         std::shared_ptr<Activity> activity, std::string group,
                                                         std::shared_ptr<ExchangeScratch> scratch);

}  // namespace gptrain
