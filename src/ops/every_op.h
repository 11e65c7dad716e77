// The list of all ops, from which backends, footprints, checks and tests are made.
#pragma once

#include "ops/ops.h"

#define GPTRAIN_FOR_EACH_OP(X) \
  X(EmbeddingForward)              \
  X(EmbeddingBackward)             \
  X(NormForward)                   \
  X(NormBackward)                  \
  X(ResidualAdd)                   \
  X(BranchBackward)                \
  X(LinearForward)                 \
  X(LinearBackwardInput)           \
  X(LinearBackwardWeight)          \
  X(QueryKeyForward)               \
  X(QueryKeyBackward)              \
  X(AttentionForward)              \
  X(AttentionBackward)             \
  X(ActivationForward)             \
  X(ActivationBackward)            \
  X(CrossEntropyStatistics)        \
  X(CrossEntropy)                  \
  X(AccumulateLoss)                \
  X(SquaredNorm)                   \
  X(PrepareUpdate)                 \
  GPTRAIN_FOR_EACH_FACTORED(X)     \
  GPTRAIN_FOR_EACH_NORMS(X)        \
  GPTRAIN_FOR_EACH_UPDATE(X)       \
  GPTRAIN_FOR_EACH_BLOCK_UPDATE(X) \
  X(Cast)                          \
  X(WeightedSum)                   \
  X(Add)                           \
  X(AddSums)                       \
  X(KeepGradients)                 \
  GPTRAIN_FOR_EACH_FP8_OP(X)       \
  X(EncodeBlocks)                  \
  X(DecodeBlocks)                  \
  GPTRAIN_FOR_EACH_PROJECTION(X)
