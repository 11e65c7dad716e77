// How fast the collectives of a group are, and that they are right.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "ops/backend.h"

namespace gptrain {

struct BenchOptions {
  int64_t max_bytes = 256 << 20;  // sizes are 1 KiB, 4 KiB, ... up to this
  DType dtype = DType::f32;       // or bf16
  double seconds = 0.2;           // to measure each row for, at least
};

// The definitions are those of nccl-tests (doc/PERFORMANCE.md): with n ranks, `bytes` is the whole buffer, S, that
// all ranks hold together after an all-gather or before a reduce-scatter, else that of one rank;
// algorithm bandwidth = S / time; bus bandwidth = that times 2 (n - 1) / n for all_reduce, (n - 1) / n for
// reduce_scatter, all_gather and all_to_all, 1 for broadcast and send.
struct BenchRow {
  std::string operation;
  int64_t bytes = 0;
  double seconds = 0;  // of one call, on the slowest rank
  double algorithm_bandwidth = 0;
  double bus_bandwidth = 0;  // bytes/s
};

// A group that works on memory of a backend's device, and the same ranks' group on the host, which they agree over. One
// and the same where the device's memory is the host's.
struct BenchGroup {
  Communicator& host;
  Communicator& device;
  Backend& backend;
};

// Collective over the group. Before a row is measured, its result is compared with the exact one bit by bit; Error
// (device) names the first element that differs. Every rank gets the same rows. "send" is a ring: each rank sends to
// the next. What a device group only queues is waited for once for all calls that are measured together.
void bench_collectives(const BenchGroup& group, const BenchOptions& options,
                       const std::function<void(const BenchRow&)>& on_row);

}  // namespace gptrain
