// The ops of the CPU backend that are not matrix products: each splits its rows, columns or elements over threads and
// calls the serial kernels. Operands have been checked and scratch is large enough when these are called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/cpu/kernels/kernel_table.h"
#include "ops/ops.h"

namespace gptrain {

struct CpuContext {
  int num_threads = 1;
  const KernelTable* kernels = nullptr;
  std::byte* scratch = nullptr;
  int64_t scratch_bytes = 0;
};

// Cosines and sines of rotary embedding. A table is computed, in double, the first time (angles, head size, sequence
// length) are asked for, and kept: in [token][pair] order, f32.
class RotaryTables {
 public:
  RotaryView find(const RotaryAngles& angles, int64_t head_size, int64_t sequence_length);

 private:
  struct Table {
    RotaryAngles angles;
    int64_t head_size;
    int64_t sequence_length;
    std::vector<float> cosines;
    std::vector<float> sines;
  };
  std::vector<std::unique_ptr<Table>> tables_;
};

void cpu_embedding_forward(const EmbeddingForward& op, const CpuContext& context);
void cpu_embedding_backward(const EmbeddingBackward& op, const CpuContext& context);
void cpu_norm_forward(const NormForward& op, const CpuContext& context);
void cpu_norm_backward(const NormBackward& op, const CpuContext& context);
void cpu_residual_add(const ResidualAdd& op, const CpuContext& context);
void cpu_branch_backward(const BranchBackward& op, const CpuContext& context);
void cpu_query_key_forward(const QueryKeyForward& op, RotaryTables& tables, const CpuContext& context);
void cpu_query_key_backward(const QueryKeyBackward& op, RotaryTables& tables, const CpuContext& context);
void cpu_activation_forward(const ActivationForward& op, const CpuContext& context);
void cpu_activation_backward(const ActivationBackward& op, const CpuContext& context);
void cpu_cross_entropy_statistics(const CrossEntropyStatistics& op, const CpuContext& context);
void cpu_cross_entropy(const CrossEntropy& op, const CpuContext& context);
void cpu_accumulate_loss(const AccumulateLoss& op);
void cpu_squared_norm(const SquaredNorm& op, const CpuContext& context);
void cpu_prepare_update(const PrepareUpdate& op);
#define GPTRAIN_DECLARE_CPU_UPDATE(Op) void cpu_update(const Op& op, const CpuContext& context);
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_DECLARE_CPU_UPDATE)
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_DECLARE_CPU_UPDATE)
#undef GPTRAIN_DECLARE_CPU_UPDATE
#define GPTRAIN_DECLARE_CPU_TENSOR_NORMS(Op) void cpu_tensor_norms(const Op& op, const CpuContext& context);
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_DECLARE_CPU_TENSOR_NORMS)
#undef GPTRAIN_DECLARE_CPU_TENSOR_NORMS
#define GPTRAIN_DECLARE_CPU_FACTORED(Op) void cpu_factored(const Op& op, const CpuContext& context);
GPTRAIN_FOR_EACH_FACTORED(GPTRAIN_DECLARE_CPU_FACTORED)
#undef GPTRAIN_DECLARE_CPU_FACTORED
void cpu_cast(const Cast& op, const CpuContext& context);
void cpu_weighted_sum(const WeightedSum& op, const CpuContext& context);
void cpu_add(const Add& op, const CpuContext& context);
void cpu_add_sums(const AddSums& op);
void cpu_keep_gradients(const KeepGradients& op, const CpuContext& context);
void cpu_encode_blocks(const EncodeBlocks& op, const CpuContext& context);
void cpu_decode_blocks(const DecodeBlocks& op, const CpuContext& context);
void cpu_projection_matrix(const ProjectionMatrix& op, const CpuContext& context);
void cpu_sample_rows(const SampleRows& op, const CpuContext& context);
void cpu_amax(const Amax& op);
void cpu_quantize(const Quantize& op, int num_threads);
void cpu_scaled_product(const ScaledProduct& op, int num_threads);

}  // namespace gptrain
