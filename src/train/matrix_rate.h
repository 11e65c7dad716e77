// The machine's own limit for matrix products, which MFU is measured against.
#pragma once

#include "base/dtype.h"
#include "ops/backend.h"

namespace gptrain {

// FLOP/s of the best of several large products in `dtype` on this backend, measured now (a fraction of a second).
// Borrows memory of the device and gives it back.
double measure_matrix_rate(Backend& backend, DType dtype);

}  // namespace gptrain
