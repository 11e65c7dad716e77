// The expert axis in the model's layers: ranks hold a layer's experts between them, and exchange tokens.
#pragma once

#include <cstdint>

#include "comm/lane.h"
#include "model/spec/shard.h"

namespace gptrain::inline model {

// The largest number of rows that a rank's experts would have received without room for them.
struct ExpertOverflow {
  int64_t rows = 0;      // 0: there was always room
  int64_t capacity = 0;  // rows for which there is room
  int64_t layer = 0;

  bool any() const { return rows > 0; }
};

// A rank's access to the ranks that share its experts. The caller owns group, lane and `overflow`.
struct ExpertParallel {
  ExpertRank axis = {};
  double capacity_factor = 1;          // rows that a rank has room for, as a multiple of those it sends
  Communicator* group = nullptr;       // group of the lane; null: one rank
  Lane* lane = nullptr;                // null: one rank
  ExpertOverflow* overflow = nullptr;  // filled in by a rank of a group with an overflow; null: plans

  bool is_split() const { return axis.size > 1; }
};

}  // namespace gptrain::model
