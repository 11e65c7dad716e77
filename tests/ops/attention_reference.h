// Attention in float64, and cases that compare both ops with it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/attention_pattern.h"
#include "harness.h"
#include "ops/ops.h"

namespace gptrain::ops_test {

// Division of sequences into documents: none, without and with a mask; a document per token; documents that begin at
// and around tile edges, different in each sequence.
enum class Documents : uint8_t { unmasked, one, one_per_token, several };

struct AttentionShape {
  int64_t batch, tokens, heads, kv_heads, head_size;
  bool causal = true;
  double dropout = 0;
  double scale = 0;    // 0: 1 / sqrt(head_size)
  double softcap = 0;  // 0: none
  int64_t gap = 0;
  int64_t window = 0;
  Documents documents = Documents::unmasked;
  int64_t max_documents = 0;      // room for documents in a device's library
  AttentionPattern pattern = {};  // if there is no window
  bool sinks = false;
  bool largest = false;  // forward also raises the largest score of each head

  int64_t rows() const { return batch * tokens; }
  int64_t q_cols() const { return heads * head_size; }
  int64_t kv_cols() const { return kv_heads * head_size; }
  double used_scale() const { return scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(head_size)); }

  bool document_begins(int64_t sequence, int64_t token) const {
    constexpr std::array<int64_t, 12> usual = {1, 2, 9, 63, 64, 65, 66, 100, 127, 129, 192, 255};
    if (documents != Documents::several) return token == 0 || documents == Documents::one_per_token;
    if (sequence > 0) return token == 0 || token == 40 * sequence || token == 128;
    return token == 0 || std::find(usual.begin(), usual.end(), token) != usual.end();
  }
  AttentionPattern used_pattern() const { return window > 0 ? window_pattern(window) : pattern; }
  // Returns true if every query sees one key, whose probability is 1.
  bool one_key() const { return !sinks && (tokens == 1 || window == 1 || documents == Documents::one_per_token); }
};

struct AttentionInputs {
  std::vector<double> q, k, v, d_o;
  std::vector<double> lse = {};    // given to backward; empty: the log-sum-exp of forward
  std::vector<double> sinks = {};  // score of each head; empty: none
};
struct AttentionResults {
  std::vector<double> o, lse, dq, dk, dv, d_sinks;
  std::vector<double> d_sink_sizes;  // sum of the magnitudes of all products in a sink's gradient
  std::vector<double> largest;       // score of each head
};

// Attention without tiles, in float64.
AttentionResults attention_reference(const AttentionShape& shape, DType dtype, const AttentionInputs& inputs);

// RETURNS the start of the document of each token in each sequence.
std::vector<int32_t> document_starts(const AttentionShape& shape);
AttentionMask mask_of(Trial& trial, const AttentionShape& shape);
// RETURNS the input of sinks; null without.
const Operand* sinks_of(Trial& trial, const AttentionShape& shape);
Dropout dropout_of(Trial& trial, const AttentionShape& shape);

// RETURNS an AttentionForward or AttentionBackward with the sizes and factors of the shape, without operands.
template <typename Op>
Op attention_op(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout) {
  Op op{};
  op.batch = shape.batch;
  op.sequence_length = shape.tokens;
  op.num_heads = shape.heads;
  op.num_kv_heads = shape.kv_heads;
  op.head_size = shape.head_size;
  op.scale = shape.used_scale();
  op.softcap = shape.softcap;
  op.mask = mask;
  op.dropout = dropout;
  return op;
}

// Compare the ops with the reference.
void attention_forward_case(Trial& trial, const AttentionShape& shape, DType dtype);
void attention_backward_case(Trial& trial, const AttentionShape& shape, DType dtype);

struct AttentionGradients {
  const Operand &q, &k, &v, &d_o, &lse;
  Operand &dq, &dk, &dv;
  const Operand *sinks, *d_sinks;  // null without sinks
};

// Runs the op on outputs and log-sum-exps of the reference.
AttentionGradients run_attention_backward(Trial& trial, const AttentionShape& shape, DType dtype);

double largest(const std::vector<double>& values);

std::string describe(const AttentionShape& shape, std::string_view rest);

// Adds a bench of both ops: q, k and v are slices of one matrix.
void add_attention_benches(Suite& suite, const AttentionShape& shape, DType dtype);

}  // namespace gptrain::ops_test
