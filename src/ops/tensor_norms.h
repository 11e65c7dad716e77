// Updates in two passes that scale the step of a tensor by norms of the whole tensor, as LAMB and LARS do.
//
// The first pass, TensorNorms<Op>, writes two sums for each tensor: of the squares of its weights, and of the squares
// of the formula's `measured` values. A rank sums over its own segments; the caller adds up the sums over ranks. The
// second pass is the update itself, an ElementUpdate whose formula reads the sums of its segment's tensor. Both passes
// read the same gradients, weights and columns, so no other data is kept between them.
//
// The formula derives from TensorFactors and defines, beside the functions in ops/element_update.h,
//   measured(gradient, weight, column...) -> float   the columns are not updated yet.
// Norms and biases, which do not decay, have no sums and are not scaled.
#pragma once

#include <cmath>
#include <string_view>

#include "ops/element_update.h"

namespace gptrain::inline ops {

struct TensorUpdate : ElementUpdate {
  Matrix sums;  // [tensors of the model, 2] f64, over all ranks: squares of weights, squares of `measured` values
};

// sums[t - first_tensor] = the two sums over the segments of tensor t, in f64, in order; 0 if it has none or the step
// is skipped.
template <typename Op>
struct TensorNorms {
  static constexpr std::string_view name = Op::norms_name;
  using Update = Op;

  Op update;             // constants and operands, all read only; update.sums is not used
  int64_t first_tensor;  // segments belong to tensors [first_tensor, first_tensor + n)
  Matrix sums;           // [n, 2] f64 out
  // On a CPU: adds in the order of the CUDA kernel (gpu_norm_lanes), so that both have the same bits.
  bool in_gpu_order = false;
};

class TensorFactors {
 public:
  TensorFactors(double weight_decay, const Matrix& sums)
      : sums_(sums.as<const double>()), weight_decay_(static_cast<float>(weight_decay)) {}

  GPTRAIN_FORMULA void begin_step(const StepState& state) {
    scale_ = state.gradient_scale;
    rate_ = state.learning_rate;
  }

  // Replaces begin_segment in the first pass.
  GPTRAIN_FORMULA void begin_measuring(const UpdateSegment& segment) {
    decay_ = segment.decay != 0 ? weight_decay_ : 0.0F;
  }

 protected:
  struct Norms {
    double weights, measured;

    // A smaller norm is zero up to rounding, and a quotient by it might overflow f32.
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

  float scale_ = 0;  // factor of gradients
  float rate_ = 0;   // learning rate
  float decay_ = 0;  // weight decay, without a rate

 private:
  const double* sums_;
  float weight_decay_;
};

}  // namespace gptrain::ops
