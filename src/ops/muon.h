// Muon (Jordan et al., 2024, with the scale of arXiv 2502.16982) for the matrices of blocks, in two updates with the
// orthogonalisation of whole matrices between them (optim/orthogonalise.h). With g the scaled gradient,
//   MuonMomentum: m = momentum m + (1 - momentum) g,  u = m, or after Nesterov momentum m + (1 - momentum) g;
//   Muon:         w -= lr (o + decay w),  o = 0.2 sqrt(max(rows, columns)) times the orthogonalised u.
// The first writes u where its operand `master` lies, which is where the gradients are; there the second finds o.
#pragma once

#include <string_view>

#include "base/matrix.h"
#include "ops/element_update.h"

namespace gptrain {

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
    const float part = one_minus_momentum_ * (gradient * scale_);
    m = momentum_ * m + part;
    return nesterov_ ? momentum_ * m + part : m;
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
    return weight - rate_ * orthogonal - decay_ * weight;
  }
};

// What the orthogonalisation is made of beside products (optim/orthogonalise.h):
// to = a_factor a + b_factor b, all of one shape, in f32 and rounded once; without b a_factor a. With a squared norm
// given, a_factor is divided by its root, or by least_norm if that is larger. `to` may be an operand of its dtype.
struct WeightedSum {
  static constexpr std::string_view name = "weighted_sum";
  Matrix a;
  double a_factor;
  Matrix b;  // like a, or not given
  double b_factor;
  Matrix to;  // out
  Matrix squared_norm = {};  // [1, 1] f64, or not given
  double least_norm = 0;
};

}  // namespace gptrain
