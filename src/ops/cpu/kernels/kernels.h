// The kernels of one instruction set, as its table lists them (see kernel_table.h).
#pragma once

#include "ops/cpu/kernels/kernel_table.h"

namespace gptrain::GPTRAIN_ISA {

void embedding_forward(const EmbeddingForward& op, int64_t first_row, int64_t end_row);
void embedding_backward_tokens(const EmbeddingBackward& op, int64_t token_class, int64_t num_classes,
                               int64_t first_column, int64_t end_column);
void embedding_backward_positions(const EmbeddingBackward& op, int64_t first_row, int64_t end_row);
void norm_forward(const NormForward& op, int64_t first_row, int64_t end_row);
void norm_backward(const NormBackward& op, int64_t first_row, int64_t end_row, float* d_gamma, float* d_beta);
void residual_add(const ResidualAdd& op, int64_t first_row, int64_t end_row);
void branch_backward(const BranchBackward& op, int64_t first_row, int64_t end_row);
void query_key_forward(const QueryKeyForward& op, RotaryView rotary, int64_t first_row, int64_t end_row);
void query_key_backward(const QueryKeyBackward& op, RotaryView rotary, int64_t first_row, int64_t end_row, float* work);
void activation_forward(const ActivationForward& op, int64_t first_row, int64_t end_row);
void activation_backward(const ActivationBackward& op, int64_t first_row, int64_t end_row);
void encode_blocks(const EncodeBlocks& op, int64_t first_row, int64_t end_row);
void decode_blocks(const DecodeBlocks& op, int64_t first_row, int64_t end_row);
void projection_matrix(const ProjectionMatrix& op, int64_t first_row, int64_t end_row);
// Rows of y.
void sample_rows(const SampleRows& op, int64_t first_row, int64_t end_row);
void cross_entropy_statistics(const CrossEntropyStatistics& op, int64_t first_row, int64_t end_row);
void cross_entropy(const CrossEntropy& op, int64_t first_row, int64_t end_row);
// Of elements [first, end) of one row, f32 or bf16.
double sum_of_squares(const Matrix& values, int64_t first, int64_t end);
// Elements [first, end) of the flat buffers, all of one segment.
void keep_gradients(const KeepGradients& op, const KeptSegment& segment, int64_t first, int64_t end);
void add_squares(const float* values, int64_t count, double* sums);
void divide_by_roots(float* values, float factor, const float* moments, int64_t count);
#define GPTRAIN_DECLARE_UPDATE(Op) \
  void update(const Op& op, const Op::Formula& formula, const UpdateSegment& segment, int64_t first, int64_t end);
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_DECLARE_UPDATE)
#undef GPTRAIN_DECLARE_UPDATE
#define GPTRAIN_DECLARE_BLOCK_UPDATE(Op) \
  void update_blocks(const Op& op, const Op::Formula& formula, int64_t first, int64_t end);
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_DECLARE_BLOCK_UPDATE)
#undef GPTRAIN_DECLARE_BLOCK_UPDATE
#define GPTRAIN_DECLARE_TENSOR_NORMS(Op) \
  void tensor_norms(const Op& op, const Op::Update::Formula& formula, int64_t first, int64_t end, double* sums);
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_DECLARE_TENSOR_NORMS)
#undef GPTRAIN_DECLARE_TENSOR_NORMS
void add_partials(const float* partials, int64_t num_partials, int64_t stride, double* sums, int64_t first_column,
                  int64_t end_column);
void cast(const Cast& op, int64_t row, int64_t first_column, int64_t end_column);
// With the factor of a that the norm leaves.
void weighted_sum(const WeightedSum& op, float a_factor, int64_t row, int64_t first_column, int64_t end_column);
void add(const Add& op, int64_t row, int64_t first_column, int64_t end_column);

}  // namespace gptrain::GPTRAIN_ISA
