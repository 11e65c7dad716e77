// The context axis in the model's layers: ranks share sequences, and each has a run of the tokens of every sequence.
#pragma once

#include "base/token_rows.h"
#include "comm/lane.h"

namespace gptrain::inline model {

// A rank's access to the ranks that share its sequences. The caller owns group and lane.
struct ContextParallel {
  ContextRank axis = {};
  Communicator* group = nullptr;  // group of the lane; null: one rank
  Lane* lane = nullptr;           // null: one rank

  bool is_split() const { return axis.size > 1; }
  // Whether ranks receive keys and values of others (ContextMethod::ring); false: they exchange tokens for heads.
  bool is_ring() const { return is_split() && axis.has_pair; }
};

}  // namespace gptrain::model
