#include "optim/orthogonalise.h"

#include <algorithm>

namespace gptrain::inline optim {
namespace {

constexpr int newton_schulz_steps = 5;
constexpr double of_x = 3.4445, of_a = -4.7750, of_square = 2.0315;
constexpr double least_norm = 1e-7;

}  // namespace

void orthogonalise(const Matrix& matrix, double scale, const SquaredNorm::Segment* all, double* squared_norm,
                   const OrthogonaliseMemory& memory, Backend& backend) {
  const int64_t rows = matrix.rows, cols = matrix.cols, small = std::min(rows, cols);
  const bool wide = rows <= cols;
  const Matrix x(memory.x, memory.products, rows, cols), y(memory.y, memory.products, rows, cols);
  const Matrix a(memory.a, memory.products, small, small), b(memory.b, memory.products, small, small);
  const Matrix norm(squared_norm, DType::f64, 1, 1);
  backend.run(SquaredNorm{.segments = all,
                          .num_segments = 1,
                          .gradients = Matrix(matrix.data, DType::f32, 1, matrix.count()),
                          .partials = norm});
  backend.run(WeightedSum{
      .a = matrix, .a_factor = 1, .b = {}, .b_factor = 0, .to = x, .squared_norm = norm, .least_norm = least_norm});
  // true_out is 0, as these products are not part of the model's FLOPs.
  for (int step = 1; step <= newton_schulz_steps; ++step) {
    if (wide) {
      backend.run(LinearForward{.x = x, .w = x, .bias = {}, .y = a, .true_out = 0});
    } else {
      // A product over rows is f32. It is stored in the matrix' own memory, which is not read again before the end.
      const Matrix sum = memory.products == DType::f32 ? a : Matrix(matrix.data, DType::f32, small, small);
      backend.run(LinearBackwardWeight{.x = x, .dy = x, .dw = sum, .d_bias = {}, .accumulate = false, .true_out = 0});
      if (sum.data != a.data) backend.run(Cast{.from = sum, .to = a});
    }
    backend.run(LinearBackwardInput{.dy = a, .w = a, .dx = b, .true_out = 0});
    backend.run(WeightedSum{.a = a, .a_factor = of_a, .b = b, .b_factor = of_square, .to = b});
    backend.run(LinearBackwardInput{.dy = wide ? b : x, .w = wide ? x : b, .dx = y, .true_out = 0});
    const bool last = step == newton_schulz_steps;
    const double factor = last ? scale : 1;
    backend.run(WeightedSum{.a = x, .a_factor = factor * of_x, .b = y, .b_factor = factor, .to = last ? matrix : x});
  }
}

}  // namespace gptrain::optim
