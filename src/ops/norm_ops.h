// Ops of norms and of the residual stream. Notation: ops/ops.h.
#pragma once

#include <string_view>

#include "base/kinds.h"
#include "base/matrix.h"
#include "base/token_rows.h"
#include "ops/dropout.h"

namespace gptrain::inline ops {

// x_out = x + dropout(branch), rounded to R; y = norm(x_out), taken of the rounded x_out, so that recomputing y from it
// gives the same bits. layernorm: (x - mean) * rstd * gamma + beta; rmsnorm: x * rstd * gamma, rstd = 1/sqrt(mean(x^2)
// + eps). With `offset`, 1 + gamma takes gamma's place. Without a branch x_out is not given and y = norm(x). x_out may
// alias x. beta is optional. mean is given for layernorm only.
struct NormForward {
  static constexpr std::string_view name = "norm_forward";
  NormKind kind;
  double eps;
  TokenRows token_rows;  // for dropout's indices
  Matrix x;              // [N, h] R
  Matrix branch;         // [N, h] C or not given
  Dropout dropout;
  Matrix x_out;      // [N, h] R, out, given if branch is
  Matrix gamma;      // [1, h] f32
  Matrix beta;       // [1, h] f32 or not given
  Matrix y;          // [N, h] C out
  Matrix mean;       // [1, N] f32 out, layernorm
  Matrix rstd;       // [1, N] f32 out
  Matrix amax = {};  // amax of y (fp8_ops.h), or not given
  bool offset = false;
};

// dx = dx_residual + d norm / dx applied to dy; gamma_sums = sum_n dy x_hat; beta_sums = sum_n dy. AddSums then adds
// these sums to the gradients of gamma and beta. dx may alias dx_residual. x is the input of the forward norm (x_out,
// if a branch was given).
struct NormBackward {
  static constexpr std::string_view name = "norm_backward";
  NormKind kind;
  Matrix dy;            // [N, h] C
  Matrix x;             // [N, h] R
  Matrix gamma;         // [1, h] f32
  Matrix mean;          // [1, N] f32, layernorm
  Matrix rstd;          // [1, N] f32
  Matrix dx_residual;   // [N, h] R or not given (zero)
  Matrix dx;            // [N, h] R out
  Matrix gamma_sums;    // [1, h] f64 out
  Matrix beta_sums;     // [1, h] f64 out, or not given
  Matrix amax = {};     // amax of dx (fp8_ops.h), or not given
  bool offset = false;  // as in forward
};

// x_out = x + dropout(branch). x_out may alias x.
struct ResidualAdd {
  static constexpr std::string_view name = "residual_add";
  TokenRows token_rows;
  Matrix x;       // [N, h] R
  Matrix branch;  // [N, h] C
  Dropout dropout;
  Matrix x_out;  // [N, h] R out
};

// d_branch = dropout'(dx), rounded to C: the gradient of the branch that was added to the residual stream.
struct BranchBackward {
  static constexpr std::string_view name = "branch_backward";
  TokenRows token_rows;
  Matrix dx;  // [N, h] R
  Dropout dropout;
  Matrix d_branch;   // [N, h] C out
  Matrix amax = {};  // amax of d_branch (fp8_ops.h), or not given
};

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_NORM_OP(X) X(NormForward) X(NormBackward) X(ResidualAdd) X(BranchBackward)
