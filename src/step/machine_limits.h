// The machine's own limits, which MFU, profiles and benches are measured against.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "ops/backend.h"

namespace gptrain {

// What this rank's speed is held against.
struct MachineLimits {
  DType compute;            // dtype of the matrix products
  double matrix_flops;      // FLOP/s
  double bytes_per_second;  // of copying memory; 0: not measured
};

// Each of what follows borrows memory of the device and gives it back, and leaves the backend without scratch memory. A
// run measures before it takes its arenas, so that this is no part of what it takes and has only to fit by itself.
constexpr int64_t measuring_bytes = int64_t{5} << 28;  // borrowed at most

// FLOP/s of large products of random numbers in `dtype` on this backend, the upper quartile, measured now: of plain
// weights and of packed ones, whichever is faster, so that a slow path does not look good beside itself (on a CPU less
// than a tenth of a second).
double measure_matrix_rate(Backend& backend, DType dtype);

// Bytes/s, read and written together, of copies that are larger than caches, measured now in the same way (a fraction of
// a second).
double measure_copy_rate(Backend& backend);

// Both, but copies only where `measure_copies`.
MachineLimits measure_limits(Backend& backend, DType compute, bool measure_copies);

}  // namespace gptrain
