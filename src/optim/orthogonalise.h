// The orthogonalisation of Muon: a matrix' singular values come near to one, its singular vectors stay.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/backend.h"

namespace gptrain {

// Memory for matrices of at most `most_elements`, whose smaller sides have at most `most_square` elements squared.
struct OrthogonaliseMemory {
  DType products;  // of the iterations' matrices: f32 or bf16
  std::byte *x, *y;  // most_elements each
  std::byte *a, *b;  // most_square each
};

// matrix = scale times what five steps of the quintic Newton-Schulz iteration make of it (Jordan et al., 2024): from X
// = matrix / max(||matrix||, 1e-7), with A = X X^T, or X^T X where that is smaller,
//   X = 3.4445 X + (-4.7750 A + 2.0315 A A) X.
// The matrix is [rows, cols] f32 without gaps, in and out. `all` is a segment of it, and `squared_norm` one f64; both
// are device memory.
void orthogonalise(const Matrix& matrix, double scale, const SquaredNorm::Segment* all, double* squared_norm,
                   const OrthogonaliseMemory& memory, Backend& backend);

}  // namespace gptrain
