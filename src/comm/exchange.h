// Collectives between processes, over any transport.
#pragma once

#include <memory>
#include <string>

#include "comm/activity.h"
#include "comm/communicator.h"
#include "comm/transport.h"

namespace gptrain {

// Memory that each rank of a group of this size takes when the group is made, to receive what it reduces: a slot for
// every rank, of at most 256 KiB, and of at least 16 KiB in groups so large that all would take more than 16 MiB.
int64_t exchange_scratch_bytes(int group_size);

// Every collective is an exchange of messages and, for reductions, a local sum in rank order:
//   reduce_scatter: all-to-all, then the sum of this rank's piece (in pieces that fit the scratch memory)
//   all_reduce: reduce_scatter and all-gather of uneven slices; a small one gathers all and sums all, one exchange less
//   broadcast: a small one from the root to all, a large one scattered by the root and gathered by all
//   barrier: dissemination, in ceil(log2(size)) exchanges
// `group` names the group in reports. One that `only_meets` takes no memory and does nothing but barriers.
std::unique_ptr<Communicator> make_exchange_communicator(std::unique_ptr<Transport> transport,
                                                         std::shared_ptr<Activity> activity, std::string group,
                                                         bool only_meets = false);

}  // namespace gptrain
