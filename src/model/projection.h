// Random projections over the tokens of each sequence (ops/projection.h): a linear saves its input's projection instead
// of all rows, and multiplies it by the same projection of its output's gradient.
#pragma once

#include <cstdint>

#include "model/layer.h"

namespace gptrain::inline model {

class Projection {
 public:
  // REQUIRES: the context outlives it. `layer`: number in the model.
  Projection(const LayerContext& context, LinearSite site, uint32_t layer)
      : context_(context), site_(site), layer_(layer) {}

  // RETURNS the rows of the projection of a matrix with `of` rows. REQUIRES: these are whole sequences.
  int64_t rows(int64_t of) const;
  // projected [rows(x.rows), cols] = S^T x. `first_row`: row of the micro-batch that is x's first.
  void run(const LayerCall& call, const Matrix& x, int64_t first_row, const Matrix& projected) const;

 private:
  int64_t rows_of_sequence() const;
  // Projects one sequence by a matrix product.
  void multiply(const LayerCall& call, PhiloxKey key, const int64_t* sample_id, const Matrix& x,
                const Matrix& projected) const;

  const LayerContext& context_;
  const LinearSite site_;
  const uint32_t layer_;
};

}  // namespace gptrain::model
