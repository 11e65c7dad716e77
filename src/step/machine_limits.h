// Measures the machine's limits, which MFU, profiles and benches are compared with.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "ops/backend.h"

namespace gptrain::inline step {

struct MachineLimits {
  DType compute;            // dtype of the matrix products
  double matrix_flops;      // FLOP/s
  double bytes_per_second;  // rate of memory copies, reads and writes together; 0: not measured
};

// The functions below take device memory and return it, and leave the backend without scratch memory. A run calls them
// before it takes its arenas, so this memory does not add to theirs.
constexpr int64_t measuring_bytes = int64_t{5} << 28;  // most device memory that these functions take

// Returns the FLOP/s of large products of random numbers in `dtype` on this backend: the upper quartile of several
// samples, with plain or packed weights, whichever are faster. So MFU compares training with the backend's best path.
// Takes less than 0.1 s on a CPU.
double measure_matrix_rate(Backend& backend, DType dtype);

// Returns the bytes/s, read and written together, of copies that exceed the caches, measured in the same way. Takes
// a fraction of a second.
double measure_copy_rate(Backend& backend);

// Measures both limits, the copy rate only if `measure_copies`.
MachineLimits measure_limits(Backend& backend, DType compute, bool measure_copies);

}  // namespace gptrain::step
