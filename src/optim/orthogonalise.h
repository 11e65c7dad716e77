// The orthogonalisation of Muon: moves a matrix' singular values close to 1 and preserves its singular vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/backend.h"

namespace gptrain::inline optim {

// Device memory for matrices of at most `most_elements` elements, whose smaller side squared is at most `most_square`.
struct OrthogonaliseMemory {
  DType products;    // dtype of the iterations' matrices: f32 or bf16
  std::byte *x, *y;  // most_elements elements each
  std::byte *a, *b;  // most_square elements each
};

// matrix = scale * X after five steps of the quintic Newton-Schulz iteration (Jordan et al., 2024), which begins with X
// = matrix / max(||matrix||, 1e-7). With A = X X^T, or X^T X if that is smaller, each step sets
//   X = 3.4445 X + (-4.7750 A + 2.0315 A A) X.
// The matrix is [rows, cols] f32, contiguous, in and out. `all`: a segment of all its elements; `squared_norm`: one f64
// for its norm. Both are device memory.
void orthogonalise(const Matrix& matrix, double scale, const SquaredNorm::Segment* all, double* squared_norm,
                   const OrthogonaliseMemory& memory, Backend& backend);

}  // namespace gptrain::optim
