// Adafactor (Shazeer and Stern, arXiv 1804.04235) as in transformers.optimization.Adafactor, without a first moment and
// with the schedule's learning rate in place of its own. With g the scaled gradient of a matrix or a vector, t =
// state.updates and b = 1 - t^beta2_decay,
//   vector: v = b v + (1 - b) (g^2 + eps), u = g / sqrt(v); matrix: u as in ops/factored.h;
//   s = lr max(eps2, rms(w)), or lr without scale_parameter;
//   w -= s decay w + s u / max(1, rms(u) / clip_threshold).
// rms is the root of the mean square over the whole matrix or vector. AdafactorVectors writes u into its operand
// `master`, for which the caller passes the gradients' memory; Adafactor then reads u as its gradients.
#pragma once

#include <cmath>
#include <string_view>

#include "base/matrix.h"
#include "ops/tensor_norms.h"

namespace gptrain::inline ops {

struct AdafactorVectors : ElementUpdate {
  static constexpr std::string_view name = "adafactor_vectors";
  static constexpr size_t num_columns = 1;  // v
  class Formula;

  double beta2_decay = 0, eps = 0;
};

class AdafactorVectors::Formula : public UpdateFactors {
 public:
  explicit Formula(const AdafactorVectors& op)
      : UpdateFactors(0), beta2_decay_(op.beta2_decay), eps_(static_cast<float>(op.eps)) {}

  GPTRAIN_FORMULA void begin_step(const StepState& state) {
    UpdateFactors::begin_step(state);
    const double share = pow(static_cast<double>(state.updates), beta2_decay_);
    share_ = static_cast<float>(share);
    kept_ = static_cast<float>(1 - share);
  }

  GPTRAIN_FORMULA float updated(float gradient, float, float& v) const {
    const float g = gradient * scale_;
    v = fused(kept_, v, share_ * fused(g, g, eps_));
    return g / sqrtf(v);
  }

 private:
  double beta2_decay_;
  float eps_;
  float share_ = 0, kept_ = 0;  // factors of this step's square and of the old v in the new v
};

struct Adafactor : TensorUpdate {
  static constexpr std::string_view name = "adafactor", averaged_name = "adafactor_ema", norms_name = "adafactor_norms";
  static constexpr size_t num_columns = 0;
  class Formula;

  double clip_threshold = 0, eps2 = 0, weight_decay = 0;
  bool scale_parameter = false;
  Matrix counts;  // [1, rows of `sums`] f64: elements over all ranks of each matrix and vector of the model
};

class Adafactor::Formula : public TensorFactors {
 public:
  explicit Formula(const Adafactor& op)
      : TensorFactors(op.weight_decay, op.sums),
        counts_(op.counts.as<const double>()),
        clip_threshold_(op.clip_threshold),
        eps2_(op.eps2),
        scale_parameter_(op.scale_parameter) {}

  GPTRAIN_FORMULA void begin_segment(const UpdateSegment& segment) {
    TensorFactors::begin_segment(segment);
    const Norms norm = norms(segment);
    const double root = sqrt(counts_[segment.tensor]);
    const double of_weights = norm.weights / root, of_steps = norm.measured / root / clip_threshold_;
    const double scale = !scale_parameter_ ? 1 : of_weights > eps2_ ? of_weights : eps2_;
    decay_ = static_cast<float>(static_cast<double>(rate_ * decay_) * scale);
    rate_ = static_cast<float>(static_cast<double>(rate_) * scale / (of_steps > 1 ? of_steps : 1));
  }

  GPTRAIN_FORMULA float measured(float u, float) const { return u; }

  GPTRAIN_FORMULA float updated(float u, float weight) const {
    return fused(-rate_, u, fused(-decay_, weight, weight));
  }

 private:
  const double* counts_;
  double clip_threshold_, eps2_;
  bool scale_parameter_;
};

}  // namespace gptrain::ops
