#include <stdexcept>

#include "ops/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/scratch.h"
namespace gptrain {
#define P(...) \
  __VA_ARGS__ { throw std::logic_error("pending"); }
P(void cpu_embedding_forward(const EmbeddingForward&, const CpuContext&))
P(void cpu_embedding_backward(const EmbeddingBackward&, const CpuContext&))
P(void cpu_norm_forward(const NormForward&, const CpuContext&))
P(void cpu_norm_backward(const NormBackward&, const CpuContext&))
P(void cpu_residual_add(const ResidualAdd&, const CpuContext&))
P(void cpu_branch_backward(const BranchBackward&, const CpuContext&))
P(void cpu_query_key_forward(const QueryKeyForward&, RotaryTables&, const CpuContext&))
P(void cpu_query_key_backward(const QueryKeyBackward&, RotaryTables&, const CpuContext&))
P(void cpu_activation_forward(const ActivationForward&, const CpuContext&))
P(void cpu_activation_backward(const ActivationBackward&, const CpuContext&))
P(void cpu_cross_entropy(const CrossEntropy&, const CpuContext&))
P(void cpu_accumulate_loss(const AccumulateLoss&))
P(void cpu_squared_norm(const SquaredNorm&, const CpuContext&))
P(void cpu_prepare_update(const PrepareUpdate&))
P(void cpu_adamw(const AdamW&, const CpuContext&))
P(void cpu_cast(const Cast&, const CpuContext&))
const KernelTable& select_kernels() {
  static const KernelTable t{.name = "x86-64"};
  return t;
}
#define Z(Op) \
  void check(const Op&) {}
GPTRAIN_FOR_EACH_OP(Z)
#define S(Op) \
  int64_t cpu_scratch_bytes(const Op&, int) { return 0; }
S(EmbeddingForward)
S(EmbeddingBackward) S(NormForward) S(NormBackward) S(ResidualAdd) S(BranchBackward) S(QueryKeyForward)
    S(QueryKeyBackward) S(ActivationForward) S(ActivationBackward) S(CrossEntropy) S(AccumulateLoss) S(SquaredNorm)
        S(PrepareUpdate) S(AdamW) S(Cast)
}  // namespace gptrain
