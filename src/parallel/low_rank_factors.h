// The factors of matrices that are summed with a low rank.
#pragma once

#include <span>

#include "base/matrix.h"
#include "base/philox.h"
#include "ops/backend.h"

namespace gptrain::inline parallel {

// Makes the rows of a matrix orthonormal, from the first to the last (Gram and Schmidt): each row v becomes v / |v|,
// and v (v . w) is taken off each row w after it. A row of zeros is first replaced by normal numbers, those of
// NormalValues with this key, from which the rows before it are taken off. Sums are in f64, in the order of elements.
// NaN and infinity spread. The matrix is f32 and contiguous. It is computed on the host in `scratch`, which has room
// for it: with a device of its own memory, the call would wait for the device.
void orthonormalise(const Matrix& rows, PhiloxKey key, std::span<float> scratch, Backend& backend);

}  // namespace gptrain::parallel
