// Updates that scale the step of a tensor by norms of the whole tensor, as LAMB and LARS do. They take two passes.
//
// The first is TensorNorms<Op>. It writes two sums for each tensor: of the squares of its weights, and of the squares
// of what the formula measures. A rank sums over its own segments, and sums are added up over ranks. The second pass is
// the update itself: an ElementUpdate like others, whose formula finds the sums of its segment's tensor. Both passes
// read the same gradients, weights and columns, so that nothing is kept between them.
//
// The formula derives from TensorFactors and has, beside what ops/element_update.h asks for,
//   measured(gradient, weight, column...) -> float   columns are those before the update.
// Norms and biases, which do not decay, have no sums and are not scaled.
#pragma once

#include <cmath>
#include <string_view>

#include "ops/element_update.h"

namespace gptrain {

struct TensorUpdate : ElementUpdate {
  Matrix sums;  // [tensors of the model, 2] f64, over all ranks: squares of weights, squares of what is measured
};

// sums[t - first_tensor] = the two sums over the segments of tensor t, in f64, in order; 0 where there is none, and
// where the step is skipped.
template <typename Op>
struct TensorNorms {
  static constexpr std::string_view name = Op::norms_name;
  using Update = Op;

  Op update;             // constants and operands, of which nothing is written; without sums
  int64_t first_tensor;  // segments are of tensors [first_tensor, first_tensor + n)
  Matrix sums;           // [n, 2] f64 out
};

class TensorFactors {
 public:
  TensorFactors(double weight_decay, const Matrix& sums)
      : sums_(sums.as<const double>()), weight_decay_(static_cast<float>(weight_decay)) {}

  GPTRAIN_FORMULA void begin_step(const StepState& state) {
    scale_ = state.gradient_scale;
    rate_ = state.learning_rate;
  }

  // In the first pass, in the place of begin_segment.
  GPTRAIN_FORMULA void begin_measuring(const UpdateSegment& segment) {
    decay_ = segment.decay != 0 ? weight_decay_ : 0.0F;
  }

 protected:
  struct Norms {
    double weights, measured;

    // One smaller than that is zero but for rounding, and f32 might not hold what it divides.
    GPTRAIN_FORMULA bool are_positive() const { return weights > 1e-30 && measured > 1e-30; }
  };

  GPTRAIN_FORMULA void begin_segment(const UpdateSegment& segment) {
    begin_measuring(segment);
    rate_ *= segment.rate_factor;
  }

  GPTRAIN_FORMULA Norms norms(const UpdateSegment& segment) const {
    const double* const sums = sums_ + 2 * segment.tensor;
    return {sqrt(sums[0]), sqrt(sums[1])};
  }

  float scale_ = 0;  // of gradients
  float rate_ = 0;   // learning rate
  float decay_ = 0;  // weight decay, without a rate

 private:
  const double* sums_;
  float weight_decay_;
};

}  // namespace gptrain
