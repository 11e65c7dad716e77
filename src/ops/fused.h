// A product and a sum with one rounding. Formulas that must have the same bits on every instruction set and by every
// compiler write each such pair with it, in sources that are compiled without contraction of their own.
#pragma once

// Marks every function of a formula. Kernels are compiled for several instruction sets, so these functions must be
// inlined: no object file may hold a copy of one (see cpu/kernels/isa.h).
#ifdef __CUDACC__
#define GPTRAIN_FORMULA __host__ __device__ inline
#else
#define GPTRAIN_FORMULA [[gnu::always_inline]] inline
#endif

namespace gptrain::inline ops {

// RETURNS a b + c, rounded once.
GPTRAIN_FORMULA float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__FP_FAST_FMAF)
  return __builtin_fmaf(a, b, c);
#else
  // In f64 the product is exact, and the sum has an error that is known exactly (Knuth's two-sum). Rounding the sum to
  // f32 is wrong only if it is half-way between two neighbours and the error points to the one that was not chosen.
  const double product = static_cast<double>(a) * static_cast<double>(b), addend = static_cast<double>(c);
  const double sum = product + addend;
  const double of_addend = sum - product;
  const double error = (product - (sum - of_addend)) + (addend - of_addend);
  const auto rounded = static_cast<double>(static_cast<float>(sum));
  const double rest = sum - rounded;
  const double mirrored = rounded + 2 * rest;  // a neighbour only if the sum is half-way or exact
  const bool is_neighbour = static_cast<double>(static_cast<float>(mirrored)) == mirrored;
  return static_cast<float>(is_neighbour && error * rest > 0 ? mirrored : rounded);
#endif
}

}  // namespace gptrain::ops
