// Every op of a training step: its formula, the shapes and dtypes of its operands, and the operands that it overwrites.
//
// An op is a struct of its operands. For each op there is one `Backend::run`, one description (operands.h), one
// footprint (footprint.h), and cases in tests/ops.
//
// Notation: B sequences of T tokens in a micro-batch, N = B T rows, h hidden size, V true vocabulary, Vp padded
// vocabulary (Vp >= V), H query heads, G key/value heads (G divides H), D head size. C is the compute dtype (f32, bf16
// or f16), R the residual stream's dtype (f32 or C). Arithmetic inside an op is at least f32; results are rounded once,
// when stored. The caller owns all operands. An output may alias an input only if the op's comment allows it.
// `accumulate` false overwrites the output (whatever it held), true adds to it. No result depends on the thread count,
// except those of the three linears (see Backend).
#pragma once

#include <string_view>

#include "base/matrix.h"
#include "ops/activation_ops.h"
#include "ops/attention_ops.h"
#include "ops/attention_part_ops.h"
#include "ops/block_codes.h"
#include "ops/clip_heads.h"
#include "ops/embedding_ops.h"
#include "ops/experts.h"
#include "ops/fp8_ops.h"
#include "ops/gradient_norm_ops.h"
#include "ops/keep_gradients.h"
#include "ops/keep_residual.h"
#include "ops/linear_ops.h"
#include "ops/loss_ops.h"
#include "ops/norm_ops.h"
#include "ops/normal_values.h"
#include "ops/projection.h"
#include "ops/sparse_ops.h"
#include "ops/updates.h"

namespace gptrain::inline ops {

// to = from, converted to the dtype of `to`. Same shape.
struct Cast {
  static constexpr std::string_view name = "cast";
  Matrix from, to;
};

// to += from, which is f32 or bf16. Same shape; to is f32.
struct Add {
  static constexpr std::string_view name = "add";
  Matrix from;
  Matrix to;  // in and out
};

// gradient (+)= sums, added in f64 and rounded once. Completes a sum over rows that other ops wrote in f64: the sums
// are those of the elements from `first` on, over the rows in order; all other elements have sums of 0.
struct AddSums {
  static constexpr std::string_view name = "add_sums";
  Matrix sums;      // [R, m] f64
  Matrix gradient;  // [1, n] f32
  bool accumulate;
  int64_t first = 0;  // first + m <= n
};

}  // namespace gptrain::ops

// All ops, expanded into the declarations of backends, descriptions and tests.
// clang-format off
#define GPTRAIN_FOR_EACH_OP(X) \
  GPTRAIN_FOR_EACH_EMBEDDING_OP(X) GPTRAIN_FOR_EACH_NORM_OP(X) GPTRAIN_FOR_EACH_LINEAR_OP(X) \
  GPTRAIN_FOR_EACH_ATTENTION_OP(X) GPTRAIN_FOR_EACH_ACTIVATION_OP(X) GPTRAIN_FOR_EACH_LOSS_OP(X) \
  GPTRAIN_FOR_EACH_GRADIENT_NORM_OP(X) X(ClipHeads) GPTRAIN_FOR_EACH_FACTORED(X) GPTRAIN_FOR_EACH_NORMS(X) \
  GPTRAIN_FOR_EACH_UPDATE(X) GPTRAIN_FOR_EACH_BLOCK_UPDATE(X) X(Cast) X(WeightedSum) X(Add) X(AddSums) \
  X(KeepGradients) X(KeepResidual) X(NormalValues) GPTRAIN_FOR_EACH_FP8_OP(X) X(EncodeBlocks) X(DecodeBlocks) \
  GPTRAIN_FOR_EACH_SPARSE_OP(X) \
  GPTRAIN_FOR_EACH_PROJECTION(X) GPTRAIN_FOR_EACH_EXPERT_OP(X) GPTRAIN_FOR_EACH_PART_OP(X)
// clang-format on
