// NCCL without devices, as a faulty network might make it: calls on a communicator that does not block answer "in
// progress" at random, peers come late, and errors come where a test wants them. Data move between streams of one
// process (streams.h). Work whose peer never comes waits until its communicator is aborted, as NCCL's kernels do.
//
// nccl_stand_in.cpp defines NCCL's functions with the signatures of its header.
#pragma once

#include <cstdint>
#include <nccl.h>
#include <string>
#include <string_view>
#include <vector>

namespace nccl_stand_in {

// The error of one call of one rank.
struct Failure {
  std::string_view call;  // name of NCCL's function; empty: none fails
  int rank = 0;           // for ncclGetUniqueId: no meaning
  int nth = 1;            // number of the call among the rank's calls of that function, from 1
  ncclResult_t result = ncclSystemError;
  bool later = false;  // true: the call answers "in progress", and ncclCommGetAsyncError tells the error
  bool never = false;  // true: the call stays "in progress" for ever
};

// Sets the delays and the failure of later calls, and forgets earlier faults.
void begin(uint64_t seed, const Failure& failure = {});
// Returns the wrong uses since `begin`, e.g. a call on a communicator whose last call is in progress, or an abort that
// waits for work which only another abort would end.
std::vector<std::string> faults();
// Returns the number of communicators that were made and neither destroyed nor aborted.
int num_communicators();
// Returns the most thread blocks that the last communicator was allowed.
int most_blocks();

}  // namespace nccl_stand_in
