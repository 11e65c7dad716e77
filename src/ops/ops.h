// Every op of a training step: its formula, the shapes and dtypes of its operands, and the operands that it overwrites.
//
// An op is a struct of its operands. For each op there is one `Backend::run`, one description (operands.h), one
// footprint (footprint.h), and cases in tests/ops.
//
// Notation: B sequences of T tokens in a micro-batch, N = B T rows, h hidden size, V true vocabulary, Vp padded
// vocabulary (Vp >= V), H query heads, G key/value heads (G divides H), D head size. C is the compute dtype (f32, bf16
// or f16), R the residual stream's dtype (f32 or C). Arithmetic inside an op is at least f32; results are rounded once,
// when stored. The caller owns all operands. An output may alias an input only if the op's comment allows it.
// `accumulate` false overwrites the output (whatever it held), true adds to it. No result depends on the thread count,
// except those of the three linears (see Backend).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/kinds.h"
#include "base/matrix.h"
#include "base/philox.h"
#include "base/rotary.h"
#include "base/token_rows.h"
#include "ops/attention_mask.h"
#include "ops/block_codes.h"
#include "ops/clip_heads.h"
#include "ops/experts.h"
#include "ops/fp8_ops.h"
#include "ops/keep_gradients.h"
#include "ops/keep_residual.h"
#include "ops/key_tiles.h"
#include "ops/normal_values.h"
#include "ops/projection.h"
#include "ops/step_state.h"
#include "ops/updates.h"

namespace gptrain::inline ops {

// Inverted dropout: an element is kept with probability 1 - p and scaled by 1 / (1 - p). p = 0: no dropout, no random
// numbers.
//
// An element is dropped if its Philox word < drop_threshold(p). In an [N, cols] operand, element (row, column) belongs
// to the sample s of the row's sequence and to the row's token t (TokenRows), and uses word (column % 4) of
// philox(key, {column / 4, t, low(s), high(s)}). Attention probabilities use (query, key) in place of (token, column),
// and one Philox key per (layer, head): `key` is the layer's; the key of head n (global) is two words of philox(key,
// {n, 0, 0, 0}).
//
// A rank that holds only some rows of the micro-batch, or some heads, sets first_row and first_head. It then draws the
// same numbers for them as a rank that holds all.
struct Dropout {
  double p = 0;
  PhiloxKey key;
  const int64_t* sample_ids = nullptr;  // device memory, [B]: global sample numbers
  int64_t first_row = 0;                // row of the micro-batch that is the operand's row 0
  int64_t first_head = 0;               // head of the model that is the operand's head 0
};

constexpr uint32_t drop_threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

// x[n] = token_scale * token_table[tokens[n]] + position_table[t], t the row's token (TokenRows), then dropout. Tables
// C, x R. The position table is optional.
// The token table may be a slice of the vocabulary, rows [first_token, first_token + rows) of `num_tokens`. Tokens
// outside the slice contribute zero, so x is the sum over the slices (dropout is linear).
struct EmbeddingForward {
  static constexpr std::string_view name = "embedding_forward";
  const int32_t* tokens;  // [N]
  TokenRows token_rows;
  Matrix token_table;     // [Vp, h]
  Matrix position_table;  // [>= token_rows.end(), h] or not given
  Dropout dropout;
  Matrix x;  // [N, h] out
  int64_t first_token = 0;
  int64_t num_tokens = 0;  // 0: the table is whole
  double token_scale = 1;
};

// d_token_table[v] (+)= sum over n with tokens[n] = v of token_scale * dropout'(dx[n]); d_position_table[t] (+)= sum
// over the rows n of token t of dropout'(dx[n]). Gradients are f32, sums in row order. accumulate_token false
// overwrites every row of the token table's gradient, accumulate_position false every row of the position table's,
// those of tokens without rows included. The token table may be a slice, as in EmbeddingForward.
struct EmbeddingBackward {
  static constexpr std::string_view name = "embedding_backward";
  const int32_t* tokens;
  TokenRows token_rows;
  Matrix dx;  // [N, h] R
  Dropout dropout;
  Matrix d_token_table;     // [Vp, h] f32
  Matrix d_position_table;  // [>= token_rows.end(), h] f32 or not given
  bool accumulate_token;
  bool accumulate_position;
  int64_t first_token = 0;
  int64_t num_tokens = 0;  // 0: the table is whole
  double token_scale = 1;
};

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

// y = x w^T (+ bias). w is [out, in]. x, w, bias, y are C; y may also be f32 when C is not (logits). If pre_activation
// is given, pre_activation = x w^T (+ bias) and y = gelu_tanh(pre_activation), taken before or after rounding to C; y
// is then C.
struct LinearForward {
  static constexpr std::string_view name = "linear_forward";
  Matrix x;                    // [N, in]
  Matrix w;                    // [out, in]
  Matrix bias;                 // [1, out] or not given
  Matrix y;                    // [N, out] out
  int64_t true_out = -1;       // rows of w that are not padding, for model FLOPs only; -1: all
  Matrix pre_activation = {};  // [N, out] C out, or not given
};

// dx = dy w. If pre_activation is given, dx = (dy w) * gelu_tanh'(pre_activation), element by element; the product may
// have been rounded to C before.
struct LinearBackwardInput {
  static constexpr std::string_view name = "linear_backward_input";
  Matrix dy;                   // [N, out] C
  Matrix w;                    // [out, in] C
  Matrix dx;                   // [N, in] C out
  int64_t true_out = -1;       // rows of w that are not padding, for model FLOPs only; -1: all
  Matrix pre_activation = {};  // [N, in] C, or not given
};

// dw (+)= dy^T x; d_bias (+)= column sums of dy.
struct LinearBackwardWeight {
  static constexpr std::string_view name = "linear_backward_weight";
  Matrix x;       // [N, in] C
  Matrix dy;      // [N, out] C
  Matrix dw;      // [out, in] f32
  Matrix d_bias;  // [1, out] f32 or not given
  bool accumulate;
  int64_t true_out = -1;  // rows of w that are not padding, for model FLOPs only; -1: all
  // Rows before the projection if x and dy are projections, for model FLOPs only; -1: they are not.
  int64_t true_rows = -1;
};

// Prepares queries and keys for attention: per-head RMS norm with weights (optional; arXiv 2302.05442 in RMS form; with
// `offset` the weights are 1 + gamma), then rotary embedding (optional). Rotary: with halves (a, b) of a head's vector,
// pair i < D/2 turns by t times its frequency (base/rotary.h): (a cos - b sin, b cos + a sin), t the row's token
// (TokenRows). q_out, k_out may alias q, k, and always do without norm. Rows may be strided (slices of a fused QKV
// matrix).
struct QueryKeyForward {
  static constexpr std::string_view name = "query_key_forward";
  TokenRows token_rows;
  int64_t head_size;
  Matrix q, k;              // [N, H D], [N, G D] C
  Matrix q_gamma, k_gamma;  // [1, D] f32, both given or neither
  double eps;
  bool rotary;
  RotaryAngles angles;
  Matrix q_out, k_out;  // like q, k
  Matrix rstd;          // [N, H + G] f32 out, given with the gammas
  bool offset = false;
};

// Gradients of QueryKeyForward. dq, dk hold the gradients of the outputs and are overwritten with the gradients of the
// inputs. AddSums then adds q_gamma_sums, k_gamma_sums, summed over rows and heads, to the gammas' gradients.
struct QueryKeyBackward {
  static constexpr std::string_view name = "query_key_backward";
  TokenRows token_rows;
  int64_t head_size;
  Matrix q, k;              // the inputs of forward; not given without norm
  Matrix q_gamma, k_gamma;  // as in forward
  Matrix rstd;
  bool rotary;
  RotaryAngles angles;
  Matrix dq, dk;                      // [N, H D], [N, G D] C, in and out
  Matrix q_gamma_sums, k_gamma_sums;  // [1, D] f64 out, given with the gammas
  bool offset = false;                // as in forward
};

// o = dropout(softmax(cap(q k^T * scale) + mask)) v for each sequence and head; query head n reads key/value head n /
// (H / G). cap(s) = softcap tanh(s / softcap), or s if softcap is 0. Tiled with an online softmax, so that no T x T
// matrix is stored (arXiv 2307.08691). Probabilities enter the second product in C or f32, depending on the device; so
// does the gradient of the scores in backward. lse is the log-sum-exp of each row of capped, masked scores. With sinks,
// every row of head h has one more score, sinks[h], which has a share of the softmax and of lse but no value.
// `largest`, if given, is raised to the largest scaled score of each head.
struct AttentionForward {
  static constexpr std::string_view name = "attention_forward";
  int64_t batch, sequence_length, num_heads, num_kv_heads, head_size;
  double scale;
  double softcap = 0;
  AttentionMask mask;
  Dropout dropout;
  Matrix q, k, v;       // [N, H D], [N, G D], [N, G D] C, rows may be strided
  Matrix o;             // [N, H D] C out
  Matrix lse;           // [B H, T] f32 out
  Matrix sinks = {};    // [1, H] f32, or not given
  Matrix largest = {};  // [1, H] f32, in and out, or not given; REQUIRES softcap = 0
};

// dv, dk, dq and d_sinks from do, with the probabilities recomputed tile by tile from q, k and lse. Sums are in
// key-tile order, so the bits are the same in every run. With grouped queries, a device's library may round each query
// head's contribution to dk and dv before it adds them.
struct AttentionBackward {
  static constexpr std::string_view name = "attention_backward";
  int64_t batch, sequence_length, num_heads, num_kv_heads, head_size;
  double scale;
  double softcap = 0;
  AttentionMask mask;
  Dropout dropout;
  Matrix q, k, v, o;  // as in forward
  Matrix lse;
  Matrix d_o;         // [N, H D] C
  Matrix dq, dk, dv;  // like q, k, v, out; rows may be strided
  Matrix sinks = {};
  Matrix d_sinks = {};  // [1, H] f64 out, given with sinks
  // True: the same bits in every run. False: a device's library may sum dq in any order, which takes less memory.
  bool fixed_bits = true;
};

// Attention of some of a sequence's queries over some of its keys, each a run of tokens (KeyTiles::of_part): `of` is
// the op of the sequence with batch 1, sequence_length queries, k and v with part.keys rows, o in f32. A query that
// sees none of these keys has o = 0 and lse = -infinity. Parts over all keys of a query are merged by MergeAttention.
// Dropout drops the pairs that it drops in the whole sequence. document_starts and sample_ids are those of the
// sequence. REQUIRES: mask.pattern.one_run().
struct AttentionPartForward {
  static constexpr std::string_view name = "attention_part_forward";
  AttentionForward of;
  AttentionPart part;
};

// Gradients of a part: dq, dk and dv, f32, are its share of the sums over all parts. o, lse and d_o are those of whole
// attention.
struct AttentionPartBackward {
  static constexpr std::string_view name = "attention_part_backward";
  AttentionBackward of;
  AttentionPart part;
};

// Adds the attention of other keys: l = log(e^lse + e^part_lse), o = o e^(lse - l) + part_o e^(part_lse - l), lse = l,
// for each query and head. Does not read part_o where part_lse is minus infinity. REQUIRES: lse is finite.
struct MergeAttention {
  static constexpr std::string_view name = "merge_attention";
  Matrix part_o;    // [N, H D] f32
  Matrix part_lse;  // [H, N] f32
  Matrix o;         // like part_o, in and out
  Matrix lse;       // like part_lse, in and out
};

// y = act(x + bias). gelu: y [N, f] from x [N, f]; gated: y = f(gate) * up with x = [gate | up], [N, 2 f], where f is
// SiLU (swiglu) or GELU (geglu, geglu_tanh). x stays without the bias. With code_bits 2, 3 or 4 (REQUIRES not gated),
// the codes of act'(x + bias) are written, too (few_bits.h).
struct ActivationForward {
  static constexpr std::string_view name = "activation_forward";
  ActivationKind kind;
  Matrix x;          // [N, f] or [N, 2 f] C
  Matrix bias;       // [1, cols of x] C or not given
  Matrix y;          // [N, f] C out
  Matrix amax = {};  // amax of y (fp8_ops.h), or not given
  int code_bits = 0;
  Matrix codes = {};  // [N, code_bytes(f, code_bits)] u8, out
};

// dx = act'(x + bias) dy. dx may alias dy if they are equally wide, but not x. (LinearBackwardWeight computes the bias'
// gradient, the column sum of dx.) With code_bits, act' is decoded from `codes`, and x and bias are not given.
struct ActivationBackward {
  static constexpr std::string_view name = "activation_backward";
  ActivationKind kind;
  Matrix x, bias;
  Matrix dy;         // [N, f] C
  Matrix dx;         // like x, out
  Matrix amax = {};  // amax of dx (fp8_ops.h), or not given
  int code_bits = 0;
  Matrix codes = {};  // as forward wrote them
};

// A softcap > 0 of the next two ops takes softcap * tanh(logit / softcap) in place of each logit (arXiv 2408.00118).
//
// Statistics of each row of a slice of the logits, columns [first_token, first_token + cols) of the vocabulary: the
// maximum m, the sum of e^(logit - m), and the target's logit (0 if the target is in another slice). A slice of padding
// only gives minus infinity, 0, 0.
struct CrossEntropyStatistics {
  static constexpr std::string_view name = "cross_entropy_statistics";
  int64_t vocab_size;  // V
  int64_t first_token;
  const int32_t* targets;  // [N]
  Matrix logits;           // [N, cols] f32 or C
  Matrix statistics;       // [3, N] f32 out
  double softcap = 0;
};

// losses[n] = lse(logits[n, :V]) - logits[n, targets[n]], 0 where targets[n] < 0 (not counted). d_logits, if given, is
// the gradient of (sum of losses + z_loss * sum of lse^2) * state->inverse_tokens * state->loss_scale.value, padded
// columns zero; it may alias logits if both are C. If `statistics` is given, the logits are a slice of the vocabulary
// that begins at first_token, and `statistics` holds the statistics of all slices in order.
struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  int64_t vocab_size;  // V
  double z_loss;
  const int32_t* targets;  // [N]
  const StepState* state;
  Matrix logits;           // [N, Vp] f32 or C
  Matrix d_logits;         // [N, Vp] C out, or not given (evaluation)
  Matrix losses;           // [1, N] f32 out
  Matrix statistics = {};  // [3 slices, N] f32, or not given
  int64_t first_token = 0;
  double softcap = 0;
};

// state->loss_sum += sum of losses, in f64, in row order (on a GPU, in the order of a fixed tree).
struct AccumulateLoss {
  static constexpr std::string_view name = "accumulate_loss";
  Matrix losses;  // [1, N] f32
  StepState* state;
};

// partials[i] = sum of squares of the gradients in the segments with `partial` i, in f64, in order; 0 if there is none.
struct SquaredNorm {
  static constexpr std::string_view name = "squared_norm";
  struct Segment {
    int64_t offset;  // elements from the start of the buffer
    int64_t count;
    int64_t partial;
  };
  const Segment* segments;  // device memory
  int64_t num_segments;
  Matrix gradients;  // [1, elements] f32 or bf16
  Matrix partials;   // [1, n] f64 out
};

// Finishes the gradient norm and decides whether the step is skipped, for every optimizer: squared_norm = sum of
// partials in order / loss scale^2; skip = loss_sum or squared_norm is not finite; gradient_scale = min(1, clip_norm /
// norm) (1 if clip_norm = 0) / loss scale; if not skipped: updates += 1. The loss scale is this step's, which remains
// in step_loss_scale; with a window, state->loss_scale becomes the next step's (see next_loss_scale). With `scores`,
// largest_score is the largest of them, and clipped_heads the number above the threshold, or 0 if skipped.
struct PrepareUpdate {
  static constexpr std::string_view name = "prepare_update";
  Matrix partials;  // [1, n] f64
  double clip_norm;
  StepState* state;
  int64_t loss_scale_window = 0;  // 0: no loss scaling
  Matrix scores = {};             // [1, n] f32: largest attention score of each head, or not given
  double score_threshold = 0;     // given with scores
};

// to = from, converted to the dtype of `to`. Same shape.
struct Cast {
  static constexpr std::string_view name = "cast";
  Matrix from, to;
};

// to += from, which is f32 or bf16. Same shape; to is f32.
struct Add {
  static constexpr std::string_view name = "add";
  Matrix from;
  Matrix to;  // in and out
};

// gradient (+)= sums, added in f64 and rounded once. Completes a sum over rows that another op wrote in f64.
struct AddSums {
  static constexpr std::string_view name = "add_sums";
  Matrix sums;      // [1, n] f64
  Matrix gradient;  // [1, n] f32
  bool accumulate;
};

}  // namespace gptrain::ops

// Ops of ranks that exchange keys and values of sequences which they share.
#define GPTRAIN_FOR_EACH_PART_OP(X) X(AttentionPartForward) X(AttentionPartBackward) X(MergeAttention)

// All ops, expanded into the declarations of backends, descriptions and tests.
// clang-format off
#define GPTRAIN_FOR_EACH_OP(X) \
  X(EmbeddingForward) X(EmbeddingBackward) X(NormForward) X(NormBackward) X(ResidualAdd) X(BranchBackward) \
  X(LinearForward) X(LinearBackwardInput) X(LinearBackwardWeight) X(QueryKeyForward) X(QueryKeyBackward) \
  X(AttentionForward) X(AttentionBackward) X(ActivationForward) X(ActivationBackward) X(CrossEntropyStatistics) \
  X(CrossEntropy) X(AccumulateLoss) X(SquaredNorm) X(PrepareUpdate) X(ClipHeads) \
  GPTRAIN_FOR_EACH_FACTORED(X) \
  GPTRAIN_FOR_EACH_NORMS(X) GPTRAIN_FOR_EACH_UPDATE(X) GPTRAIN_FOR_EACH_BLOCK_UPDATE(X) X(Cast) X(WeightedSum) \
  X(Add) X(AddSums) X(KeepGradients) X(KeepResidual) X(NormalValues) GPTRAIN_FOR_EACH_FP8_OP(X) X(EncodeBlocks) \
  X(DecodeBlocks) GPTRAIN_FOR_EACH_PROJECTION(X) GPTRAIN_FOR_EACH_EXPERT_OP(X) GPTRAIN_FOR_EACH_PART_OP(X)
// clang-format on
