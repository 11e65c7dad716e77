// The three linears on the CPU.
//
// oneDNN's matmul, on the plain layouts of ops.h, where it has a kernel that keeps within the scratch bound; own tiled
// products where it does not: rows that are not dense, bfloat16 without AVX512-BF16, or more workspace than the bound.
// A product is cut into parts of rows or columns of its result, each of which one thread computes; one that is too
// small to give every thread a part is left to oneDNN's own threads. The choice depends on shapes, dtypes, instruction
// set and thread count only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ops/backend.h"
#include "ops/ops.h"

namespace gptrain {

// Scratch that a linear may use, whatever its shape. oneDNN 2.6 asks for up to 1.7 MB per thread for packed blocks of
// the operands. For sums over 2,048 rows and more it may also want a copy of dw per thread: such a sum is cut into
// slices that fit the bound.
constexpr int64_t linear_scratch_bytes(int num_threads) { return num_threads * (int64_t{4} << 20); }

// Holds oneDNN's primitives: one is made the first time a shape is run (about a millisecond) and kept. One thread calls
// it at a time; ops run on `num_threads` OpenMP threads. Operands are as ops.h says (the caller checks shapes). Throws
// Error(device) when scratch is smaller than linear_scratch_bytes or oneDNN fails.
class CpuLinear {
 public:
  // thread_independent: parts, and so bits, depend on the shapes only; else on the number of threads too.
  CpuLinear(int num_threads, bool thread_independent);
  ~CpuLinear();

  void run(const LinearForward& op, std::byte* scratch, int64_t scratch_bytes);
  void run(const LinearBackwardInput& op, std::byte* scratch, int64_t scratch_bytes);
  void run(const LinearBackwardWeight& op, std::byte* scratch, int64_t scratch_bytes);
  void run(const BiasGradient& op);
  // On all threads at once. Null where oneDNN has no such product within the scratch bound. Only as long as this lives.
  std::unique_ptr<PackedLinear> pack(const LinearForward& op, const Backend::Allocate& allocate, std::byte* scratch,
                                     int64_t scratch_bytes);

 private:
  class Products;
  std::unique_ptr<Products> products_;
};

}  // namespace gptrain
