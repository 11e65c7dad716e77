#include "step/averaged_weights.h"

#include <algorithm>
#include <vector>

namespace gptrain::inline step {
namespace {

Matrix row(void* data, DType dtype, const StateSlice& piece) { return {data, dtype, 1, piece.count()}; }

Matrix weights_of(const StateSlice& piece) {
  return piece.weight != nullptr ? row(piece.weight, DType::f32, piece) : row(piece.narrow_weight, DType::bf16, piece);
}

// The weights saved in the memory of the gradients. No weight is wider than f32, so none is rounded.
Matrix saved_weights_of(const StateSlice& piece) { return row(piece.gradient, DType::f32, piece); }

}  // namespace

AveragedWeights::AveragedWeights(TrainingStep& step) : step_(step) {
  const StateColumns& columns = step.parameters().columns();
  const auto ema =
      static_cast<size_t>(std::find_if(columns.begin(), columns.end(),
                                       [](const StateColumn& column) { return column.name == ema_column; }) -
                          columns.begin());
  for (const StateSlice& piece : step.state()) {
    if (piece.count() == 0) continue;
    step.backend().run(Cast{.from = weights_of(piece), .to = saved_weights_of(piece)});
    step.backend().run(Cast{.from = row(piece.columns.at(ema), DType::f32, piece), .to = weights_of(piece)});
  }
  step.weights_changed();
}

void AveragedWeights::restore() {
  for (const StateSlice& piece : step_.state()) {
    if (piece.count() > 0) step_.backend().run(Cast{.from = saved_weights_of(piece), .to = weights_of(piece)});
  }
  step_.weights_changed();
}

}  // namespace gptrain::step
