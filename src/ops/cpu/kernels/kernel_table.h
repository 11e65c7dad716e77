// The serial kernels of the CPU backend, one table per instruction set.
//
// Every kernel works on a range of rows, columns or elements of one op; splitting the ranges over threads is the
// caller's part. Results of a range do not depend on how the others are split.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace gptrain {

// Cosines and sines of rotary embedding, [sequence_length][head_size / 2].
struct RotaryView {
  const float* cosines = nullptr;
  const float* sines = nullptr;
};

struct KernelTable {
  const char* name;  // of the instruction set: "baseline", "x86_64_v3", "x86_64_v4"

  void (*embedding_forward)(const EmbeddingForward& op, int64_t first_row, int64_t end_row);
  // Adds the gradients of rows whose token modulo num_classes is token_class, columns [first_column, end_column).
  // first_column is a multiple of 4.
  void (*embedding_backward_tokens)(const EmbeddingBackward& op, int64_t token_class, int64_t num_classes,
                                    int64_t first_column, int64_t end_column);
  // Rows [first_row, end_row) of the position table.
  void (*embedding_backward_positions)(const EmbeddingBackward& op, int64_t first_row, int64_t end_row);

  void (*norm_forward)(const NormForward& op, int64_t first_row, int64_t end_row);
  // d_gamma and d_beta receive the sums over the range, [h] each, overwritten.
  void (*norm_backward)(const NormBackward& op, int64_t first_row, int64_t end_row, float* d_gamma, float* d_beta);

  void (*residual_add)(const ResidualAdd& op, int64_t first_row, int64_t end_row);
  void (*branch_backward)(const BranchBackward& op, int64_t first_row, int64_t end_row);

  void (*query_key_forward)(const QueryKeyForward& op, RotaryView rotary, int64_t first_row, int64_t end_row);
  // work: [3 D]; the first two thirds receive the sums over the range for d_q_gamma and d_k_gamma.
  void (*query_key_backward)(const QueryKeyBackward& op, RotaryView rotary, int64_t first_row, int64_t end_row,
                             float* work);

  void (*activation_forward)(const ActivationForward& op, int64_t first_row, int64_t end_row);
  void (*activation_backward)(const ActivationBackward& op, int64_t first_row, int64_t end_row);

  void (*encode_blocks)(const EncodeBlocks& op, int64_t first_row, int64_t end_row);
  void (*decode_blocks)(const DecodeBlocks& op, int64_t first_row, int64_t end_row);
  void (*projection_matrix)(const ProjectionMatrix& op, int64_t first_row, int64_t end_row);
  void (*sample_rows)(const SampleRows& op, int64_t first_row, int64_t end_row);

  void (*cross_entropy_statistics)(const CrossEntropyStatistics& op, int64_t first_row, int64_t end_row);
  void (*cross_entropy)(const CrossEntropy& op, int64_t first_row, int64_t end_row);

  // Of elements [first, end) of one row, f32 or bf16.
  double (*sum_of_squares)(const Matrix& values, int64_t first, int64_t end);
  // Elements [first, end) of the flat buffers, all of one segment.
  void (*keep_gradients)(const KeepGradients& op, const KeptSegment& segment, int64_t first, int64_t end);
  // sums[i] += values[i]^2.
  void (*add_squares)(const float* values, int64_t count, double* sums);
  // values[i] *= factor / sqrt(moments[i]).
  void (*divide_by_roots)(float* values, float factor, const float* moments, int64_t count);
  // Elements [first, end) of the flat buffers, all of one segment, whose formula is given.
#define GPTRAIN_UPDATE_ENTRY(Op)                                                                             \
  void (*update_##Op)(const Op& op, const Op::Formula& formula, const UpdateSegment& segment, int64_t first, \
                      int64_t end);
  GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_UPDATE_ENTRY)
#undef GPTRAIN_UPDATE_ENTRY
  // Blocks [first, end) of the range, under the formula of the step.
#define GPTRAIN_BLOCK_UPDATE_ENTRY(Op) \
  void (*update_##Op)(const Op& op, const Op::Formula& formula, int64_t first, int64_t end);
  GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_BLOCK_UPDATE_ENTRY)
#undef GPTRAIN_BLOCK_UPDATE_ENTRY
  // Of elements [first, end) of one segment: the squares of weights and of what the formula measures go to sums[0] and sums[1].
#define GPTRAIN_TENSOR_NORMS_ENTRY(Op) \
  void (*norms_##Op)(const Op& op, const Op::Update::Formula& formula, int64_t first, int64_t end, double* sums);
  GPTRAIN_FOR_EACH_NORMS(GPTRAIN_TENSOR_NORMS_ENTRY)
#undef GPTRAIN_TENSOR_NORMS_ENTRY
  // sums[c] = sum over blocks b, in order, of partials[b * stride + c], for columns [first_column, end_column).
  void (*add_partials)(const float* partials, int64_t num_partials, int64_t stride, double* sums, int64_t first_column,
                       int64_t end_column);
  void (*cast)(const Cast& op, int64_t row, int64_t first_column, int64_t end_column);
  void (*weighted_sum)(const WeightedSum& op, float a_factor, int64_t row, int64_t first_column, int64_t end_column);
  void (*add)(const Add& op, int64_t row, int64_t first_column, int64_t end_column);
};

#ifdef __x86_64__
#define GPTRAIN_KERNEL_ISAS(X) X(baseline) X(x86_64_v3) X(x86_64_v4)
#else
#define GPTRAIN_KERNEL_ISAS(X) X(baseline)
#endif

// The best table that this CPU can run and ONEDNN_MAX_CPU_ISA allows.
const KernelTable& select_kernels();

}  // namespace gptrain
