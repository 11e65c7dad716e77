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
#include "base/token_rows.h"
#include "ops/dropout.h"
#include "ops/step_state.h"

namespace gptrain::inline ops {

// How a router's scores become weights. s = softmax(logits) or sigmoid(logits); a token's experts are the k with the
// largest logits, of equal ones those with lower numbers. With a bias (RouteTokens) or several groups they are the k
// with the largest s + bias, in the `group_top_k` groups of E / groups experts whose k / group_top_k largest numbers
// s + bias have the largest sums (arXiv 2412.19437). The weight of an expert is s times `scale`, divided by the sum of
// the k scores with `renormalise` (for a sigmoid plus 1e-20).
struct RouterRule {
  RouterScore score = RouterScore::softmax;
  bool renormalise = true;
  double scale = 1;
  int64_t balanced_rows = 0;  // consecutive rows whose loads are balanced, L: of a sequence, or of all
  int64_t run_ranks = 1;      // ranks that share each run of L rows: this one has own_rows() of each
  int64_t groups = 1, group_top_k = 1;
  // Largest number of rows of an expert among `capacity_rows` consecutive ones; 0: all. An expert that is chosen by
  // more drops those with the smallest weights, of equal ones the later ones; by DropRule::position the last ones.
  int64_t capacity = 0;
  int64_t capacity_rows = 1;
  DropRule drop = DropRule::probability;

  constexpr int64_t own_rows() const { return balanced_rows / run_ranks; }
};

constexpr int64_t most_expert_groups = 64;

// RETURNS the number of values in RouteTokens::statistics.
constexpr int64_t num_routing_sums(int64_t experts) { return experts + 4; }

// Chooses each row's experts, and sorts the assignments of rows to experts into slots: by expert, then by row.
// slots[n, j] is the slot of row n for experts[n, j], -1 if the expert drops the row; experts are in falling order of
// the numbers by which they are chosen. rows[r] is the row in slot r.
//
// `statistics`, if given, is added to: first the number of rows that chose each expert; then the sum over runs of L
// rows of E sum_e f_e P_e, with f_e = (rows that chose e) / (L k) and P_e the mean over the run of s_e, for a sigmoid
// of s_e / sum s (arXiv 2101.03961 within a run); then the sums over rows of logsumexp(logits)^2 (2202.08906), of the
// entropy of s, for a sigmoid s / sum s, and of the copies that experts dropped. With `excess`, E f_e is 1 + excess[e].
// `loads`, if given, is the number of this rank's rows of each run that chose each expert; E f_e is known only once the
// ranks' loads are added, so that AddBalance then adds the second of these sums.
struct RouteTokens {
  static constexpr std::string_view name = "route_tokens";
  RouterRule rule;
  Matrix logits;           // [N, E] f32
  Matrix experts;          // [N, k] i32 out
  Matrix slots;            // [N, k] i32 out
  Matrix rows;             // [1, N k] i32 out
  Matrix weights;          // [1, N k] f32 out, by slot
  Matrix offsets;          // [1, E + 1] i32 out
  Matrix bias = {};        // [1, E] f32, or not given
  Matrix excess = {};      // [1, E] f32, or not given
  Matrix statistics = {};  // [1, E + 4] f64 in and out, or not given
  Matrix loads = {};       // [runs, E] f32 out, or not given
};

// Adds the sum over this rank's runs of E sum_e f_e P_e (RouteTokens), with P_e over its own rows, divided by L.
struct AddBalance {
  static constexpr std::string_view name = "add_balance";
  RouterRule rule;
  int64_t top_k;
  Matrix logits;      // [N, E] f32
  Matrix loads;       // [runs, E] f32, of all ranks of a run
  Matrix statistics;  // [1, E + 4] f64 in and out
};

// d_logits: gradient of the loss through the weights, and of (balance_factor * sum over runs of E sum_e f_e P_e +
// z_factor * sum over rows of logsumexp^2) * state->loss_scale.value, with f_e taken as a constant. A dropped row's
// weight has no gradient.
struct RouteTokensBackward {
  static constexpr std::string_view name = "route_tokens_backward";
  RouterRule rule;
  double balance_factor;
  double z_factor;
  const StepState* state;
  Matrix logits, experts, slots;  // as in forward
  Matrix excess = {};             // as in forward
  Matrix loads = {};              // as in AddBalance; not given: those of the rows
  Matrix d_weights;               // [1, N k] f32, by slot
  Matrix d_logits;                // [N, E] f32 out
};

// y = x times a factor of each element, uniform between 1 - eps and 1 + eps with dropout.p = eps. The element's Philox
// word is that of its dropout (Dropout). x may be y if it is f32. The same op is the backward pass.
struct JitterRows {
  static constexpr std::string_view name = "jitter_rows";
  Dropout dropout;
  TokenRows token_rows;
  Matrix x;  // [N, h] C
  Matrix y;  // [N, h] f32 out
};

// weights[n] = sigmoid(logits[n]), offsets = 0, N: all rows are one expert's.
struct GateRows {
  static constexpr std::string_view name = "gate_rows";
  Matrix logits;   // [N, 1] f32
  Matrix weights;  // [1, N] f32 out
  Matrix offsets;  // [1, 2] i32 out
};

// d_logits[n] = d_weights[n] w (1 - w), w = weights[n].
struct GateRowsBackward {
  static constexpr std::string_view name = "gate_rows_backward";
  Matrix weights, d_weights;  // [1, N] f32
  Matrix d_logits;            // [N, 1] f32 out
};

// A router's vector that follows the loads of the experts, not a gradient: a part of it in the updated range.
struct BalanceSegment {
  int64_t offset;  // elements from the range's start
  int64_t count;
  int64_t first;         // the vector's element at `offset`
  int64_t experts;       // elements of the vector
  int64_t first_routed;  // index in BalanceRouters::routed of the first value of the layer
  int32_t is_excess;     // 0: the bias
};

// For each vector, with n_e the rows of a step that chose expert e, and m their mean over experts: a bias rises by
// `rate` where n_e < m, and falls by it where n_e > m (arXiv 2408.15664). An excess becomes n_e / m - 1. Nothing is
// written if state->skip.
struct BalanceRouters {
  static constexpr std::string_view name = "balance_routers";
  const BalanceSegment* segments;  // device memory
  int64_t num_segments;
  double rate;
  const StepState* state;
  Matrix routed;  // [1, n] f64
  Matrix values;  // [1, elements] f32, in and out
};

// to = 0: the gradient of tensors that no loss trains, rows of other ranks.
struct WriteZeros {
  static constexpr std::string_view name = "write_zeros";
  Matrix to;  // [1, n] out
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

// y[n] = sum over j of x[slots[n, j]] for slots from 0 on, in order of j, plus `router` and `shared`, if given. y may
// alias `shared`.
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
  X(RouteTokens) X(AddBalance) X(RouteTokensBackward) X(JitterRows) X(GateRows) X(GateRowsBackward) X(BalanceRouters) \
  X(WriteZeros) X(GatherRows) X(CombineRows) X(ExpertActivationForward) \
  X(ExpertActivationBackward) X(GroupedLinearForward) X(GroupedLinearBackwardInput) X(GroupedLinearBackwardWeight)
// clang-format on
