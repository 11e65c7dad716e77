// Muon (Jordan et al., 2024, with the scale of arXiv 2502.16982) for the matrices of blocks, in two updates, between
// which whole matrices are orthogonalised (optim/orthogonalise.h). With g the scaled gradient,
//   MuonMomentum: m = momentum m + (1 - momentum) g,  u = m, or after Nesterov momentum m + (1 - momentum) g;
//   Muon:         w -= lr (o + decay w),  o = 0.2 sqrt(max(rows, columns)) times the orthogonalised u.
// MuonMomentum writes u into its operand `master`, for which the caller passes the gradients' memory. The
// orthogonalisation replaces u by o there, and Muon reads o as its gradients.
#pragma once

#include <string_view>

#include "base/matrix.h"
#include "ops/element_update.h"

namespace gptrain::inline ops {

struct MuonMomentum : ElementUpdate {
  static constexpr std::string_view name = "muon_momentum";
  static constexpr size_t num_columns = 1;  // m
  class Formula;

  double momentum = 0;
  bool nesterov = false;
};

class MuonMomentum::Formula : public UpdateFactors {
 public:
  explicit Formula(const MuonMomentum& op)
      : UpdateFactors(0),
        momentum_(static_cast<float>(op.momentum)),
        one_minus_momentum_(static_cast<float>(1.0 - op.momentum)),
        nesterov_(op.nesterov) {}

  GPTRAIN_FORMULA float updated(float gradient, float, float& m) const {
    const float g = gradient * scale_;
    m = fused(one_minus_momentum_, g, momentum_ * m);
    return nesterov_ ? fused(one_minus_momentum_, g, momentum_ * m) : m;
  }

 private:
  float momentum_, one_minus_momentum_;
  bool nesterov_;
};

struct Muon : ElementUpdate {
  static constexpr std::string_view name = "muon", averaged_name = "muon_ema";
  static constexpr size_t num_columns = 0;
  class Formula;

  double weight_decay = 0;
};

class Muon::Formula : public UpdateFactors {
 public:
  explicit Formula(const Muon& op) : UpdateFactors(op.weight_decay) {}

  GPTRAIN_FORMULA float updated(float orthogonal, float weight) const {
    return fused(-decay_, weight, fused(-rate_, orthogonal, weight));
  }
};

// to = a_factor a + b_factor b, computed in f32 and rounded once; without b, to = a_factor a. All have one shape. If
// squared_norm is given, a_factor is divided by its root, or by least_norm if that is larger. `to` may alias a or b of
// the same dtype. Used by the orthogonalisation (optim/orthogonalise.h).
struct WeightedSum {
  static constexpr std::string_view name = "weighted_sum";
  Matrix a;
  double a_factor;
  Matrix b;  // like a, or not given
  double b_factor;
  Matrix to;                 // out
  Matrix squared_norm = {};  // [1, 1] f64, or not given
  double least_norm = 0;
};

}  // namespace gptrain::ops
