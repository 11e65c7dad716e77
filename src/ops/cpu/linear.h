// The three linears on the CPU.
//
// Products of bfloat16 with many rows run on AMX tiles, by blocks of their own (kernels/linear_blocks.h), where the CPU
// has tiles. The others use oneDNN's matmul, on the plain layouts of ops.h, if it has a kernel within the scratch
// bound. Own tiled products serve the rest: rows that are not dense, bfloat16 without AVX512-BF16, or more workspace
// than the bound. A product for oneDNN is cut into parts, rows or columns of its result, each computed by one thread; a
// product too small for that runs on oneDNN's own threads. The choice depends on shapes, dtypes, instruction set and
// thread count only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ops/backend.h"
#include "ops/ops.h"

namespace gptrain::inline ops {

// Scratch bound of a linear of any shape. oneDNN 2.6 needs up to 1.7 MB per thread for packed blocks of the operands.
// For sums over 2,048 rows and more it may also need a copy of dw per thread; such a sum is cut into slices that fit
// the bound.
constexpr int64_t linear_scratch_bytes(int num_threads) { return num_threads * (int64_t{4} << 20); }

// Runs the linears and caches oneDNN's primitives: the first run of a shape builds one (about a millisecond). REQUIRES:
// one thread calls it at a time; the caller has checked the operands. Ops run on `num_threads` OpenMP threads. THROWS
// Error(device) if scratch is smaller than linear_scratch_bytes or oneDNN fails.
class CpuLinear {
 public:
  // thread_independent: parts, and so the bits of results, depend on shapes only; false: also on the number of threads.
  CpuLinear(int num_threads, bool thread_independent);
  ~CpuLinear();

  void run(const LinearForward& op, std::byte* scratch, int64_t scratch_bytes);
  void run(const LinearBackwardInput& op, std::byte* scratch, int64_t scratch_bytes);
  void run(const LinearBackwardWeight& op, std::byte* scratch, int64_t scratch_bytes);
  void run(const BiasGradient& op);
  // RETURNS a packed linear that runs on all threads, valid while this object lives; null if oneDNN has no such product
  // within the scratch bound.
  std::unique_ptr<PackedLinear> pack(const LinearForward& op, const Backend::Allocate& allocate, std::byte* scratch,
                                     int64_t scratch_bytes);

 private:
  class Products;
  std::unique_ptr<Products> products_;
};

}  // namespace gptrain::ops
