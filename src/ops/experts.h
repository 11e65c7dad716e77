// Ops of a mixture of experts (arXiv 1701.06538): a router chooses k of E experts for each row, rows are gathered by
// expert, each expert's linears multiply its rows, and the results are added up again.
//
// Notation, beside that of ops.h: R rows of the experts (a row of x for each of its experts), of which the first
// offsets[E] are used. Expert e has rows [offsets[e], offsets[e + 1]). Ops neither read nor write rows past the last;
// R is their declared bound. Offsets and other integers lie on the device, as they depend on the data.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/kinds.h"
#include "base/matrix.h"
#include "ops/step_state.h"

namespace gptrain::inline ops {

// How a router's scores become weights. s = softmax(logits) or sigmoid(logits); a token's experts are the k with the
// largest logits, of equal ones those with lower numbers. The weight of an expert is s times `scale`, divided by the
// sum of the k scores with `renormalise` (for a sigmoid plus 1e-20).
struct RouterRule {
  RouterScore score = RouterScore::softmax;
  bool renormalise = true;
  double scale = 1;
  int64_t sequence_length = 0;  // rows of a sequence, T
};

// Chooses each row's experts, and sorts the assignments of rows to experts into slots: by expert, then by row.
// slots[n, j] is the slot of row n for experts[n, j]; experts are in falling order of their logits. rows[r] is the row
// in slot r.
//
// `statistics`, if given, is added to: first the number of rows of each expert; then the sum over sequences of
// E sum_e f_e P_e, with f_e = (rows of e) / (T k) and P_e the mean over the sequence of s_e, for a sigmoid of
// s_e / sum s (arXiv 2101.03961 within a sequence); then the sums over rows of logsumexp(logits)^2 (2202.08906), and of
// the entropy of s, for a sigmoid s / sum s.
struct RouteTokens {
  static constexpr std::string_view name = "route_tokens";
  RouterRule rule;
  Matrix logits;           // [N, E] f32
  Matrix experts;          // [N, k] i32 out
  Matrix slots;            // [N, k] i32 out
  Matrix rows;             // [1, N k] i32 out
  Matrix weights;          // [1, N k] f32 out, by slot
  Matrix offsets;          // [1, E + 1] i32 out
  Matrix statistics = {};  // [1, E + 3] f64 in and out, or not given
};

// d_logits: gradient of the loss through the weights, and of (balance_factor * sum over sequences of E sum_e f_e P_e +
// z_factor * sum over rows of logsumexp^2) * state->loss_scale.value, with f_e taken as a constant.
struct RouteTokensBackward {
  static constexpr std::string_view name = "route_tokens_backward";
  RouterRule rule;
  double balance_factor;
  double z_factor;
  const StepState* state;
  Matrix logits, experts, slots;  // as in forward
  Matrix d_weights;               // [1, N k] f32, by slot
  Matrix d_logits;                // [N, E] f32 out
};

// y[r] = x[rows[r]] for r < offsets[E].
struct GatherRows {
  static constexpr std::string_view name = "gather_rows";
  Matrix x;                    // [N, h] C
  Matrix rows;                 // [1, R] i32
  Matrix offsets;              // [1, E + 1] i32
  Matrix y;                    // [R, h] C out
  int64_t expected_rows = -1;  // rows used if all experts have equally many, for predictions; -1: R
};

// y[n] = sum over j of x[slots[n, j]], in order of j, plus `router` and `shared`, if given. y may alias `shared`.
struct CombineRows {
  static constexpr std::string_view name = "combine_rows";
  Matrix x;            // [R, h] C
  Matrix slots;        // [N, k] i32
  Matrix router = {};  // [N, h] f32, or not given
  Matrix shared = {};  // [N, h] C, or not given
  Matrix y;            // [N, h] C out
};

// y[r] = weights[r] act(x[r]) for r < offsets[E] (act: see ActivationForward).
struct ExpertActivationForward {
  static constexpr std::string_view name = "expert_activation_forward";
  ActivationKind kind;
  Matrix x;                    // [R, f], or if gated [R, 2 f], C
  Matrix weights;              // [1, R] f32
  Matrix offsets;              // [1, E + 1] i32
  Matrix y;                    // [R, f] C out
  int64_t expected_rows = -1;  // see GatherRows
};

// dx[r] = weights[r] act'(x[r]) dy[r]; d_weights[r] = act(x[r]) . dy[r].
struct ExpertActivationBackward {
  static constexpr std::string_view name = "expert_activation_backward";
  ActivationKind kind;
  Matrix x, weights, offsets;
  Matrix dy;                   // [R, f] C
  Matrix dx;                   // like x, out
  Matrix d_weights;            // [1, R] f32 out
  int64_t expected_rows = -1;  // see GatherRows
};

// y = x w_e^T for the rows of each expert e; w holds the experts' matrices [out, in] one below the other.
struct GroupedLinearForward {
  static constexpr std::string_view name = "grouped_linear_forward";
  Matrix x;                    // [R, in] C
  Matrix w;                    // [E out, in] C
  Matrix offsets;              // [1, E + 1] i32
  Matrix y;                    // [R, out] C out
  int64_t expected_rows = -1;  // see GatherRows; counted in model FLOPs
};

// dx = dy w_e for the rows of each expert e.
struct GroupedLinearBackwardInput {
  static constexpr std::string_view name = "grouped_linear_backward_input";
  Matrix dy;                   // [R, out] C
  Matrix w;                    // [E out, in] C
  Matrix offsets;              // [1, E + 1] i32
  Matrix dx;                   // [R, in] C out
  int64_t expected_rows = -1;  // see GatherRows; counted in model FLOPs
};

// dw_e (+)= dy^T x over the rows of each expert e; 0 for an expert without rows if accumulate is false.
struct GroupedLinearBackwardWeight {
  static constexpr std::string_view name = "grouped_linear_backward_weight";
  Matrix x;        // [R, in] C
  Matrix dy;       // [R, out] C
  Matrix offsets;  // [1, E + 1] i32
  Matrix dw;       // [E out, in] f32
  bool accumulate;
  int64_t expected_rows = -1;  // see GatherRows; counted in model FLOPs
};

}  // namespace gptrain::ops

// clang-format off
#define GPTRAIN_FOR_EACH_EXPERT_OP(X) \
  X(RouteTokens) X(RouteTokensBackward) X(GatherRows) X(CombineRows) X(ExpertActivationForward) \
  X(ExpertActivationBackward) X(GroupedLinearForward) X(GroupedLinearBackwardInput) X(GroupedLinearBackwardWeight)
// clang-format on
