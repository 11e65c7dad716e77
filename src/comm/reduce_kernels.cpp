// Follows the rules of ops/cpu/kernels/isa.h.
#include "comm/reduce_kernels.h"

#include "ops/cpu/kernels/isa.h"

namespace gptrain::inline comm::GPTRAIN_ISA {
namespace {

using ops::GPTRAIN_ISA::load;
using ops::GPTRAIN_ISA::store;

inline double load(const double* from) { return *from; }
inline void store(double* to, double value) { *to = value; }
inline int32_t load(const int32_t* from) { return *from; }
inline void store(int32_t* to, int32_t value) { *to = value; }
inline int64_t load(const int64_t* from) { return *from; }
inline void store(int64_t* to, int64_t value) { *to = value; }

inline float sum(float a, float b) { return a + b; }
inline double sum(double a, double b) { return a + b; }
inline int32_t sum(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
inline int64_t sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

template <ReduceOp op, typename T>
inline T combine(T a, T b) {
  if constexpr (op == ReduceOp::sum) return sum(a, b);
  const bool keep = op == ReduceOp::max ? a > b : a < b;
  return keep || a != a ? a : b;
}

// Combines up to four inputs into the block in one pass; with `first`, the first input initialises the block.
template <typename T, ReduceOp op, int num, bool first, typename Wide>
inline void take(const void* const* inputs, int64_t start, int64_t n, Wide* block) {
  const T* a = static_cast<const T*>(inputs[0]) + start;
  const T* b = num > 1 ? static_cast<const T*>(inputs[1]) + start : a;
  const T* c = num > 2 ? static_cast<const T*>(inputs[2]) + start : a;
  const T* d = num > 3 ? static_cast<const T*>(inputs[3]) + start : a;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    Wide value = first ? load(a + i) : combine<op>(block[i], load(a + i));
    if constexpr (num > 1) value = combine<op>(value, load(b + i));
    if constexpr (num > 2) value = combine<op>(value, load(c + i));
    if constexpr (num > 3) value = combine<op>(value, load(d + i));
    block[i] = value;
  }
}

template <typename T, ReduceOp op, bool first, typename Wide>
inline void take_some(const void* const* inputs, int64_t num, int64_t start, int64_t n, Wide* block) {
  if (num == 1) take<T, op, 1, first>(inputs, start, n, block);
  if (num == 2) take<T, op, 2, first>(inputs, start, n, block);
  if (num == 3) take<T, op, 3, first>(inputs, start, n, block);
  if (num >= 4) take<T, op, 4, first>(inputs, start, n, block);
}

// Reduces block by block. A block fits the L1 cache, and all inputs of it are read before any of it is written.
template <typename T, ReduceOp op>
void reduce_blocks(const void* const* inputs, int64_t num_inputs, T* out, int64_t count) {
  constexpr int64_t block_size = 1024;
  alignas(64) decltype(load(out)) block[block_size];
  for (int64_t start = 0; start < count; start += block_size) {
    const int64_t n = count - start < block_size ? count - start : block_size;
    take_some<T, op, true>(inputs, num_inputs, start, n, block);
    for (int64_t k = 4; k < num_inputs; k += 4) take_some<T, op, false>(inputs + k, num_inputs - k, start, n, block);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) store(out + start + i, block[i]);
  }
}

template <typename T>
void reduce_type(const void* const* inputs, int64_t num_inputs, void* out, int64_t count, ReduceOp op) {
  T* typed = static_cast<T*>(out);
  if (op == ReduceOp::sum) reduce_blocks<T, ReduceOp::sum>(inputs, num_inputs, typed, count);
  if (op == ReduceOp::max) reduce_blocks<T, ReduceOp::max>(inputs, num_inputs, typed, count);
  if (op == ReduceOp::min) reduce_blocks<T, ReduceOp::min>(inputs, num_inputs, typed, count);
}

void reduce_any(const void* const* inputs, int64_t num_inputs, void* out, int64_t count, DType dtype, ReduceOp op) {
  if (dtype == DType::f32) reduce_type<float>(inputs, num_inputs, out, count, op);
  if (dtype == DType::bf16) reduce_type<bf16>(inputs, num_inputs, out, count, op);
  if (dtype == DType::f16) reduce_type<f16>(inputs, num_inputs, out, count, op);
  if (dtype == DType::f64) reduce_type<double>(inputs, num_inputs, out, count, op);
  if (dtype == DType::i32) reduce_type<int32_t>(inputs, num_inputs, out, count, op);
  if (dtype == DType::i64) reduce_type<int64_t>(inputs, num_inputs, out, count, op);
}

}  // namespace

const ReduceKernel reduce_kernel = reduce_any;

}  // namespace gptrain::comm::GPTRAIN_ISA
