// One piece of a step's work, as plans and profiles write it down: an op, a copy, a collective, a wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/int128.h"

namespace gptrain {

// The matrix products that an op consists of, which decide how fast its FLOPs go.
struct ProductShape {
  enum class Kind : uint8_t {
    none,
    plain,               // `count` products of [m, k] and [k, n]
    attention_forward,   // of `count` heads with m queries and n keys, k is the size of a head
    attention_backward,  // likewise
  };
  Kind kind = Kind::none;
  DType dtype = DType::f32;  // of the factors
  int64_t count = 1;
  int64_t m = 0, n = 0, k = 0;
};

struct Event {
  enum class Kind : uint8_t {
    op,
    copy,        // between the host's memory and the device's
    collective,  // or a transfer to or from one other rank
    wait,        // of the rank for a collective
  };
  // Of a collective: the numbers of its lane and of the kind of its group, as the owner of the lanes counts them.
  struct Place {
    int8_t lane = -1;
    int8_t group = -1;
  };

  Kind kind = Kind::op;
  bool beside_ops = false;     // a copy in a queue of its own: ops run on meanwhile
  Place place = {};
  int32_t ranks = 0;           // of a collective's group
  int64_t awaits = -1;         // of a wait: the collective's number in the log; -1: it came before
  std::string_view name = {};  // static storage
  std::string shape = {};      // sizes and dtypes, for people: "N=8192 in=768 out=2304 bf16"
  Flops model_flops = 0;
  Flops executed_flops = 0;
  int64_t bytes_moved = 0;   // of a copy or collective: the bytes of its data
  int64_t sent_bytes = 0;    // of a collective: by this rank, see comm/plan.h
  ProductShape products = {};    // of an op
  double start_seconds = 0;  // on the clock of steady_seconds; where nothing ran, both are 0
  double end_seconds = 0;
};

// Seconds on a clock that never jumps.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace gptrain
