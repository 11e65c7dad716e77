// The ops of the CPU backend. Each splits its rows, columns or elements over threads and calls the serial kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/cpu/kernels/kernel_table.h"
#include "ops/cpu/parallel.h"
#include "ops/ops.h"

namespace gptrain::inline ops {

class CpuLinear;

// Cosines and sines of rotary embedding, f32, in [token][pair] order. A table for (angles, head size, sequence length)
// is computed in double at its first use and kept.
class RotaryTables {
 public:
  RotaryView find(const RotaryAngles& angles, int64_t head_size, int64_t num_tokens);

 private:
  struct Table {
    RotaryAngles angles;
    int64_t head_size;
    int64_t num_tokens;
    std::vector<float> cosines;
    std::vector<float> sines;
  };
  std::vector<std::unique_ptr<Table>> tables_;
};

// Memory and library objects that the ops of a backend share.
struct CpuContext {
  int num_threads = 1;
  const KernelTable* kernels = nullptr;
  std::byte* scratch = nullptr;
  int64_t scratch_bytes = 0;
  RotaryTables* rotary_tables = nullptr;
  CpuLinear* linear = nullptr;
};

// REQUIRES: the op has been checked, and its cpu_scratch_bytes are available.
#define GPTRAIN_DECLARE_CPU_RUN(Op) void cpu_run(const Op& op, const CpuContext& context);
GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_CPU_RUN)
#undef GPTRAIN_DECLARE_CPU_RUN

// Divides `num_rows` rows of an op among threads, each of which runs the kernel on its share.
template <typename Op>
void run_rows(const Op& op, int64_t num_rows, void (*kernel)(const Op& op, int64_t first_row, int64_t end_row),
              const CpuContext& context) {
  parallel_shares(context.num_threads, num_rows, [&](int64_t first, int64_t end) { kernel(op, first, end); });
}

// Computes the amax of an output, if its operand is given.
inline void run_amax(const Matrix& output, const Matrix& amax, const CpuContext& context) {
  if (amax.given()) cpu_run(Amax{output, amax}, context);
}

}  // namespace gptrain::ops
