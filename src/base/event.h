// One piece of a step's work as plans and profiles record it: an op, a copy, a collective or a wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/int128.h"

namespace gptrain::inline base {

// Why a GPU's library does not serve an attention op, so that gptrain's own kernels compute it; `no`: it does.
enum class OwnAttention : uint8_t {
  no,
  f32,
  dropout,
  softcap,
  sinks,
  largest_scores,  // QK-clip asks for them
  pattern,         // not one run of keys
  documents,       // masked, without room in max_documents
  head_size,
  length,
  workspace,
  fixed_bits,  // the device's library has no backward pass with the same bits in every run
  device
};

// Shapes of the matrix products in an op, from which its speed in FLOPs is predicted.
struct ProductShape {
  enum class Kind : uint8_t {
    none,
    plain,               // `count` products of [m, k] and [k, n]
    attention_forward,   // `count` heads with m queries and n keys; k is the head size
    attention_backward,  // the same shapes, backward
  };
  Kind kind = Kind::none;
  DType dtype = DType::f32;  // type of the operands
  int64_t count = 1;
  int64_t m = 0, n = 0, k = 0;
  OwnAttention own = OwnAttention::no;
};

struct Event {
  enum class Kind : uint8_t {
    op,
    copy,        // between host memory and device memory
    collective,  // or a transfer to or from one other rank
    wait,        // the rank waits for a collective
  };
  // Position of a collective: the index of its lane and the index of its group's kind, as numbered by the owner of the
  // lanes. -1: not a collective.
  struct Channel {
    int8_t lane = -1;
    int8_t group = -1;
  };

  // Where the work is done: among the ops of the rank's thread, or beside them by those who update weights.
  enum class Queue : uint8_t { ops, update, disk_read, disk_write };

  Kind kind = Kind::op;
  bool beside_ops = false;  // the copy runs in its own queue while ops go on
  Queue queue = Queue::ops;
  Channel channel = {};
  int32_t ranks = 0;           // size of the collective's group
  int64_t awaits = -1;         // for a wait: event number of the collective; -1: it was issued before the log began
  std::string_view name = {};  // borrowed: static storage
  std::string shape = {};      // sizes and dtypes, for people: "N=8192 in=768 out=2304 bf16"
  Flops model_flops = 0;
  Flops executed_flops = 0;
  int64_t bytes_moved = 0;     // data of a copy or collective, in bytes
  int64_t sent_bytes = 0;      // bytes that this rank sends in a collective (comm/plan.h)
  ProductShape products = {};  // shapes of an op's matrix products
  double start_seconds = 0;    // on the clock of steady_seconds; start and end are 0 if nothing ran (a plan)
  double end_seconds = 0;
};

// Seconds on a clock that never jumps.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace gptrain::base
