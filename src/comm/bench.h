// Measures the speed of a group's collectives and checks their results.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/sum_algorithms.h"
#include "ops/backend.h"

namespace gptrain::inline comm {

struct BenchOptions {
  int64_t max_bytes = 256 << 20;  // largest buffer; sizes are 1 KiB, 4 KiB, ... up to it
  DType dtype = DType::f32;       // f32 or bf16
  double seconds = 0.2;           // minimum measuring time per row
  // Ways to sum that are measured in place of all operations, after sends; empty: none. REQUIRES: f32, host memory.
  std::vector<SumAlgorithm> algorithms = {};
};

// A row with the definitions of nccl-tests (doc/PERFORMANCE.md). With n ranks, `bytes` is S: the whole buffer of all
// ranks for all-gather and reduce-scatter, one rank's buffer for other operations. Algorithm bandwidth = S / time. Bus
// bandwidth = that times 2 (n - 1) / n for all_reduce, (n - 1) / n for reduce_scatter, all_gather and all_to_all, 1 for
// broadcast and send.
struct BenchRow {
  std::string operation;
  int64_t bytes = 0;
  double seconds = 0;  // per call, on the slowest rank
  double algorithm_bandwidth = 0;
  double bus_bandwidth = 0;  // bytes/s
  // Time of a SumAlgorithm by sum_cost with the latency of the smallest send and the rate of the largest; else 0.
  double formula_seconds = 0;
};

// A group on a backend's device memory, and the host group of the same ranks, over which they agree. Both are the same
// object if device memory is host memory.
struct BenchGroup {
  Communicator& host;
  Communicator& device;
  Backend& backend;
};

// Measures all operations and sizes; every rank gets the same rows. Collective over the group. Each result is first
// compared bit by bit with the exact one; THROWS Error(device) that names the first wrong element. "send" is a ring:
// each rank sends to the next. If a device group only queues its work, one wait at the end of a measurement covers all
// its calls.
void bench_collectives(const BenchGroup& group, const BenchOptions& options,
                       const std::function<void(const BenchRow&)>& on_row);

}  // namespace gptrain::comm
