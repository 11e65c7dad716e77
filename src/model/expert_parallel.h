// The expert axis in the model's layers: each rank holds some of a layer's experts, and ranks exchange tokens.
#pragma once

#include <cstdint>

#include "comm/lane.h"
#include "model/spec/shard.h"

namespace gptrain::inline model {

// The largest overflow so far: more rows for the experts of one rank than it has memory for.
struct ExpertOverflow {
  int64_t rows = 0;      // rows that the routers chose; 0: the capacity always sufficed
  int64_t capacity = 0;  // rows for which the rank has memory
  int64_t layer = 0;     // number of the block

  bool any() const { return rows > 0; }
};

// A rank's access to the ranks that share its experts. The caller owns group, lane and `overflow`.
struct ExpertParallel {
  ExpertRank axis = {};
  double capacity_factor = 1;          // rows for which a rank has memory, over the rows that it sends
  bool drops = false;                  // rows without room are left out; false: they void the step (ExpertOverflow)
  Communicator* group = nullptr;       // group of the lane; null: one rank
  Lane* lane = nullptr;                // null: one rank
  ExpertOverflow* overflow = nullptr;  // written by all ranks of the group if one of them overflows; null: in plans

  bool is_split() const { return axis.size > 1; }
};

}  // namespace gptrain::model
