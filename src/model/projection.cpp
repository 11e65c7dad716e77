#include "model/projection.h"

#include <cmath>

namespace gptrain::inline model {

// RETURNS the share of the tokens, from 64 rows on rounded up to a multiple that suits libraries' products.
int64_t Projection::rows_of_sequence() const {
  constexpr int64_t large = 64, multiple = 8;
  const int64_t tokens = context_.shape.sequence_length;
  const auto rows =
      std::max<int64_t>(1, std::llround(context_.shape.choices.projection.share * static_cast<double>(tokens)));
  return rows < large ? rows : std::min(tokens, (rows + multiple - 1) / multiple * multiple);
}

int64_t Projection::rows(int64_t of) const { return context_.shape.token_rows().sequence(of) * rows_of_sequence(); }

void Projection::run(const LayerCall& call, const Matrix& x, int64_t first_row, const Matrix& projected) const {
  const StepShape& shape = context_.shape;
  const int64_t tokens = shape.sequence_length, rows = rows_of_sequence();
  const PhiloxKey key = random_key(shape.seed, RandomUse::linear_projection, layer_, static_cast<uint32_t>(site_));
  const int64_t* const sample_ids = call.sample_ids + shape.token_rows().sequence(first_row);
  if (shape.choices.projection.kind == ProjectionKind::rows)
    return context_.backend.run(
        SampleRows{.key = key, .sample_ids = sample_ids, .sequence_length = tokens, .x = x, .y = projected});
  for (int64_t sequence = 0; sequence < shape.token_rows().sequence(x.rows); ++sequence) {
    multiply(call, key, sample_ids + sequence, x.row_range(sequence * tokens, tokens),
             projected.row_range(sequence * rows, rows));
  }
}

void Projection::multiply(const LayerCall& call, PhiloxKey key, const int64_t* sample_id, const Matrix& x,
                          const Matrix& projected) const {
  WorkspaceFrame frame(*call.workspace);
  const Matrix s = frame.take(x.dtype, x.rows, projected.rows);
  const Matrix product = frame.take(DType::f32, projected.rows, projected.cols);
  context_.backend.run(ProjectionMatrix{.kind = context_.shape.choices.projection.kind,
                                        .key = key,
                                        .sample_ids = sample_id,
                                        .sequence_length = x.rows,
                                        .s = s});
  // true_out is 0, as the product is not part of the model's FLOPs.
  context_.backend.run(
      LinearBackwardWeight{.x = x, .dy = s, .dw = product, .d_bias = {}, .accumulate = false, .true_out = 0});
  context_.backend.run(WeightedSum{.a = product,
                                   .a_factor = 1 / std::sqrt(static_cast<double>(projected.rows)),
                                   .b = {},
                                   .b_factor = 0,
                                   .to = projected});
}

}  // namespace gptrain::model
