// Ops of attention: queries and keys made ready, attention over whole sequences. Notation: ops/ops.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "base/rotary.h"
#include "base/token_rows.h"
#include "ops/attention_mask.h"
#include "ops/dropout.h"

namespace gptrain::inline ops {

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

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_ATTENTION_OP(X) X(QueryKeyForward) X(QueryKeyBackward) X(AttentionForward) X(AttentionBackward)
