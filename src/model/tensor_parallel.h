// What the model's layers know of the tensor axis (arXiv 1909.08053; sequence parallelism: arXiv 2205.05198).
#pragma once

#include "comm/lane.h"
#include "model/spec/shard.h"

namespace gptrain {

// Column-parallel linears compute a rank's share of the outputs, row-parallel ones a rank's part of every output, which
// is summed. With `sequence`, the residual stream, norms and dropout hold rows [rank N / size, (rank + 1) N / size) of
// a micro-batch only: sums become reduce-scatters, and column-parallel linears gather their inputs.
struct TensorParallel {
  TensorPlace place;
  bool sequence = false;
  Communicator* group = nullptr;  // of the lane; null: one rank
  Lane* lane = nullptr;           // null: one rank
};

}  // namespace gptrain
