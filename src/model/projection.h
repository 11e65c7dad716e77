// What a linear keeps of its input in place of all its rows, and what it makes alike of its output's gradient: random
// projections over the tokens of each sequence (ops/projection.h).
#pragma once

#include <cstdint>

#include "model/layer.h"

namespace gptrain {

class Projection {
 public:
  // Context outlives it. `layer`: of the model.
  Projection(const LayerContext& context, LinearSite site, uint32_t layer)
      : context_(context), site_(site), layer_(layer) {}

  // Of a matrix of so many rows, which are whole sequences.
  int64_t rows(int64_t of) const;
  // projected [rows(x.rows), cols] = S^T x, where x begins at the row `first_row` of the micro-batch.
  void run(const LayerCall& call, const Matrix& x, int64_t first_row, const Matrix& projected) const;

 private:
  int64_t rows_of_sequence() const;
  // The same for one sequence, by a product.
  void multiply(const LayerCall& call, PhiloxKey key, const int64_t* sample_id, const Matrix& x,
                const Matrix& projected) const;

  const LayerContext& context_;
  const LinearSite site_;
  const uint32_t layer_;
};

}  // namespace gptrain
