// Loading by the ranks that hold the same parameters: of what several of them need, each byte is read by one, and
// passed on to the others. So no file is read as often as there are data ranks.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "checkpoint/transfers.h"
#include "comm/communicator.h"

namespace gptrain {

struct SharedLoad {
  int64_t read_bytes = 0;  // of tensors, by this rank, from files
  // Error(checkpoint): what kept this rank from reading, or from writing to its memory. It has taken part to the end
  // all the same; what the ranks have loaded is then of no use. Null: nothing did.
  std::exception_ptr fault;
};

// Carries out the transfers of every rank of `group` (null: there is one rank), all of them of the same checkpoint.
// Collective. A box is read, and its checksum compared, by one of the ranks that need it, so that all read about as
// much; pieces of what the others need go to them, at most some 24 MiB at a time. Error(device) as for every
// collective.
SharedLoad load_together(const Contents& contents, std::vector<BoxTransfer> transfers, Communicator* group);

}  // namespace gptrain
