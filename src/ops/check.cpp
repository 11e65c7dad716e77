#include "ops/check.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/checker.h"
#include "ops/few_bits.h"

namespace gptrain {
namespace {

template <typename Op>
void check_norm_statistics(const Checker& checker, const Op& op) {
  checker.matrix("rstd", op.rstd, DType::f32, 1, op.x.rows);
  if (op.kind == NormKind::layernorm) checker.matrix("mean", op.mean, DType::f32, 1, op.x.rows);
}

int64_t activation_cols(ActivationKind kind, const Matrix& narrow) {
  return is_gated(kind) ? 2 * narrow.cols : narrow.cols;
}

template <typename Op>
void check_attention(const Checker& checker, const Op& op) {
  checker.require(op.batch > 0 && op.sequence_length > 0 && op.head_size > 0, "a size is not positive");
  checker.require(op.num_kv_heads > 0 && op.num_heads % op.num_kv_heads == 0, "num_kv_heads must divide num_heads");
  checker.real("q", op.q);
  const int64_t rows = op.batch * op.sequence_length;
  const DType dtype = op.q.dtype;
  checker.matrix("q", op.q, dtype, rows, op.num_heads * op.head_size);
  checker.matrix("k", op.k, dtype, rows, op.num_kv_heads * op.head_size);
  checker.matrix("v", op.v, dtype, rows, op.num_kv_heads * op.head_size);
  checker.matrix("o", op.o, dtype, rows, op.num_heads * op.head_size);
  checker.matrix("lse", op.lse, DType::f32, op.batch * op.num_heads, op.sequence_length);
  checker.dropout(op.dropout, op.sequence_length);
  checker.require(op.mask.window >= 0, "the window is negative");
  checker.require(op.mask.causal || (op.mask.window == 0 && op.mask.document_starts == nullptr),
                  "a window and documents need a causal mask");
  checker.require(op.mask.max_documents >= 0 && (op.mask.max_documents == 0 || op.mask.document_starts != nullptr),
                  "room for documents is negative, or given without documents");
}

// The gammas, rstd and sizes of both directions; q and k are what is turned.
template <typename Op>
void check_heads(const Checker& checker, const Op& op, const Matrix& q, const Matrix& k) {
  checker.require(op.head_size > 0, "head_size is not positive");
  checker.require(!op.rotary || op.head_size % 2 == 0, "rotary needs an even head_size");
  checker.real("q", q);
  checker.require(q.cols % op.head_size == 0 && k.cols % op.head_size == 0, "columns are not whole heads");
  checker.matrix("k", k, q.dtype, q.rows, k.cols);
  checker.sequences(q.rows, op.sequence_length);
  checker.require(op.q_gamma.given() == op.k_gamma.given(), "q_gamma and k_gamma are given both or neither");
  if (!op.q_gamma.given()) return;
  checker.matrix("q_gamma", op.q_gamma, DType::f32, 1, op.head_size);
  checker.matrix("k_gamma", op.k_gamma, DType::f32, 1, op.head_size);
  checker.matrix("rstd", op.rstd, DType::f32, q.rows, (q.cols + k.cols) / op.head_size);
}

}  // namespace

void check(const EmbeddingForward& op) {
  const Checker checker(op.name);
  checker.real("x", op.x);
  checker.real("token_table", op.token_table);
  checker.sequences(op.x.rows, op.sequence_length);
  checker.table("token_table", op.token_table, op.token_table.dtype, 1, op.x.cols);
  checker.vocabulary_slice(op.first_token, op.num_tokens, op.token_table.rows);
  if (op.position_table.given())
    checker.table("position_table", op.position_table, op.token_table.dtype, op.sequence_length, op.x.cols);
  checker.dropout(op.dropout, op.sequence_length);
}

void check(const EmbeddingBackward& op) {
  const Checker checker(op.name);
  checker.real("dx", op.dx);
  checker.sequences(op.dx.rows, op.sequence_length);
  checker.table("d_token_table", op.d_token_table, DType::f32, 1, op.dx.cols);
  checker.vocabulary_slice(op.first_token, op.num_tokens, op.d_token_table.rows);
  if (op.d_position_table.given())
    checker.table("d_position_table", op.d_position_table, DType::f32, op.sequence_length, op.dx.cols);
  checker.dropout(op.dropout, op.sequence_length);
}

void check(const NormForward& op) {
  const Checker checker(op.name);
  checker.real("x", op.x);
  checker.real("y", op.y);
  const DType compute = op.y.dtype;
  checker.matrix("gamma", op.gamma, DType::f32, 1, op.x.cols);
  checker.optional("beta", op.beta, DType::f32, 1, op.x.cols);
  checker.matrix("y", op.y, compute, op.x.rows, op.x.cols);
  checker.amax(op.amax, op.y);
  check_norm_statistics(checker, op);
  if (op.branch.given()) {
    checker.matrix("branch", op.branch, compute, op.x.rows, op.x.cols);
    checker.matrix("x_out", op.x_out, op.x.dtype, op.x.rows, op.x.cols);
    checker.dropout(op.dropout, op.sequence_length);
  }
}

void check(const NormBackward& op) {
  const Checker checker(op.name);
  checker.real("x", op.x);
  checker.real("dy", op.dy);
  checker.matrix("gamma", op.gamma, DType::f32, 1, op.x.cols);
  checker.matrix("dy", op.dy, op.dy.dtype, op.x.rows, op.x.cols);
  check_norm_statistics(checker, op);
  checker.optional("dx_residual", op.dx_residual, op.x.dtype, op.x.rows, op.x.cols);
  checker.matrix("dx", op.dx, op.x.dtype, op.x.rows, op.x.cols);
  checker.matrix("gamma_sums", op.gamma_sums, DType::f64, 1, op.x.cols);
  checker.optional("beta_sums", op.beta_sums, DType::f64, 1, op.x.cols);
  checker.amax(op.amax, op.dx);
}

void check(const ResidualAdd& op) {
  const Checker checker(op.name);
  checker.real("x", op.x);
  checker.real("branch", op.branch);
  checker.matrix("branch", op.branch, op.branch.dtype, op.x.rows, op.x.cols);
  checker.matrix("x_out", op.x_out, op.x.dtype, op.x.rows, op.x.cols);
  checker.dropout(op.dropout, op.sequence_length);
}

void check(const BranchBackward& op) {
  const Checker checker(op.name);
  checker.real("dx", op.dx);
  checker.real("d_branch", op.d_branch);
  checker.matrix("d_branch", op.d_branch, op.d_branch.dtype, op.dx.rows, op.dx.cols);
  checker.dropout(op.dropout, op.sequence_length);
  checker.amax(op.amax, op.d_branch);
}

void check(const LinearForward& op) {
  const Checker checker(op.name);
  checker.real("x", op.x);
  checker.real("w", op.w);
  checker.matrix("w", op.w, op.x.dtype, op.w.rows, op.x.cols);
  checker.optional("bias", op.bias, op.x.dtype, 1, op.w.rows);
  const bool widened = op.y.dtype == DType::f32 && op.x.dtype != DType::f32;
  checker.matrix("y", op.y, widened ? DType::f32 : op.x.dtype, op.x.rows, op.w.rows);
  if (!op.pre_activation.given()) return;
  checker.require(!widened, "y must be as x is where there is a pre-activation");
  checker.matrix("pre_activation", op.pre_activation, op.x.dtype, op.x.rows, op.w.rows);
  checker.separate("y may not be the pre-activation", op.y, op.pre_activation);
}

void check(const LinearBackwardInput& op) {
  const Checker checker(op.name);
  checker.real("dy", op.dy);
  checker.real("w", op.w);
  checker.matrix("w", op.w, op.dy.dtype, op.dy.cols, op.w.cols);
  checker.matrix("dx", op.dx, op.dy.dtype, op.dy.rows, op.w.cols);
  checker.optional("pre_activation", op.pre_activation, op.dy.dtype, op.dy.rows, op.w.cols);
  checker.separate("dx may not be the pre-activation", op.dx, op.pre_activation);
}

void check(const LinearBackwardWeight& op) {
  const Checker checker(op.name);
  checker.real("x", op.x);
  checker.real("dy", op.dy);
  checker.matrix("dy", op.dy, op.x.dtype, op.x.rows, op.dy.cols);
  checker.matrix("dw", op.dw, DType::f32, op.dy.cols, op.x.cols);
  checker.optional("d_bias", op.d_bias, DType::f32, 1, op.dy.cols);
}

void check(const QueryKeyForward& op) {
  const Checker checker(op.name);
  check_heads(checker, op, op.q, op.k);
  checker.matrix("q_out", op.q_out, op.q.dtype, op.q.rows, op.q.cols);
  checker.matrix("k_out", op.k_out, op.q.dtype, op.k.rows, op.k.cols);
  if (op.q_gamma.given()) {
    checker.separate("q_out may not be q where there is a norm", op.q_out, op.q);
    checker.separate("k_out may not be k where there is a norm", op.k_out, op.k);
  }
}

void check(const QueryKeyBackward& op) {
  const Checker checker(op.name);
  check_heads(checker, op, op.dq, op.dk);
  if (!op.q_gamma.given()) return;
  checker.matrix("q", op.q, op.dq.dtype, op.dq.rows, op.dq.cols);
  checker.matrix("k", op.k, op.dq.dtype, op.dk.rows, op.dk.cols);
  checker.matrix("q_gamma_sums", op.q_gamma_sums, DType::f64, 1, op.head_size);
  checker.matrix("k_gamma_sums", op.k_gamma_sums, DType::f64, 1, op.head_size);
}

void check(const AttentionForward& op) { check_attention(Checker(op.name), op); }

void check(const AttentionBackward& op) {
  const Checker checker(op.name);
  check_attention(checker, op);
  checker.matrix("d_o", op.d_o, op.q.dtype, op.o.rows, op.o.cols);
  checker.matrix("dq", op.dq, op.q.dtype, op.q.rows, op.q.cols);
  checker.matrix("dk", op.dk, op.q.dtype, op.k.rows, op.k.cols);
  checker.matrix("dv", op.dv, op.q.dtype, op.v.rows, op.v.cols);
}

namespace {

template <typename Op>
void check_codes(const Checker& checker, const Op& op, const Matrix& beside) {
  checker.require(op.codes.given() == (op.code_bits != 0), "codes come with their width");
  if (op.code_bits == 0) return;
  checker.require(is_code_width(op.code_bits), "codes have 2, 3 or 4 bits");
  checker.require(!is_gated(op.kind), "a gated activation has no codes");
  checker.matrix("codes", op.codes, DType::u8, beside.rows, code_bytes(beside.cols, op.code_bits));
}

}  // namespace

void check(const ActivationForward& op) {
  const Checker checker(op.name);
  checker.real("y", op.y);
  check_codes(checker, op, op.y);
  checker.matrix("x", op.x, op.y.dtype, op.y.rows, activation_cols(op.kind, op.y));
  checker.optional("bias", op.bias, op.y.dtype, 1, op.x.cols);
  checker.amax(op.amax, op.y);
}

void check(const ActivationBackward& op) {
  const Checker checker(op.name);
  checker.real("dy", op.dy);
  check_codes(checker, op, op.dy);
  checker.matrix("dx", op.dx, op.dy.dtype, op.dy.rows, activation_cols(op.kind, op.dy));
  if (op.codes.given()) {
    checker.require(!op.x.given() && !op.bias.given(), "x and bias are not read beside codes");
  } else {
    checker.matrix("x", op.x, op.dy.dtype, op.dx.rows, op.dx.cols);
    checker.optional("bias", op.bias, op.dy.dtype, 1, op.x.cols);
    checker.separate("dx may not be x", op.dx, op.x);
  }
  checker.amax(op.amax, op.dx);
}

void check(const CrossEntropyStatistics& op) {
  const Checker checker(op.name);
  checker.real("logits", op.logits);
  checker.require(op.vocab_size > 0 && op.first_token >= 0, "vocab_size is not positive, or first_token negative");
  checker.matrix("statistics", op.statistics, DType::f32, 3, op.logits.rows);
}

void check(const CrossEntropy& op) {
  const Checker checker(op.name);
  checker.real("logits", op.logits);
  if (op.statistics.given()) {
    checker.require(op.vocab_size > 0 && op.first_token >= 0, "vocab_size is not positive, or first_token negative");
    checker.require(op.statistics.rows % 3 == 0, "statistics are not three rows for each slice");
    checker.matrix("statistics", op.statistics, DType::f32, op.statistics.rows, op.logits.rows);
  } else {
    checker.require(op.vocab_size > 0 && op.vocab_size <= op.logits.cols, "vocab_size is not in [1, logits.cols]");
    checker.require(op.first_token == 0, "a slice of the vocabulary needs the statistics of all");
  }
  checker.matrix("losses", op.losses, DType::f32, 1, op.logits.rows);
  if (!op.d_logits.given()) return;
  checker.real("d_logits", op.d_logits);
  checker.matrix("d_logits", op.d_logits, op.d_logits.dtype, op.logits.rows, op.logits.cols);
  checker.require(op.d_logits.data != op.logits.data || op.d_logits.data == nullptr ||
                      (op.d_logits.dtype == op.logits.dtype && op.d_logits.stride == op.logits.stride),
                  "d_logits may be logits only in the same dtype and stride");
}

void check(const AccumulateLoss& op) { Checker(op.name).matrix("losses", op.losses, DType::f32, 1, op.losses.cols); }

// Whether gradients may be bf16.
DType gradient_dtype(const Matrix& gradients, bool takes_bf16) {
  return takes_bf16 && gradients.dtype == DType::bf16 ? DType::bf16 : DType::f32;
}

void check(const SquaredNorm& op) {
  const Checker checker(op.name);
  checker.matrix("gradients", op.gradients, gradient_dtype(op.gradients, true), 1, op.gradients.cols);
  checker.require(op.num_segments >= 0, "a negative number of segments");
  checker.matrix("partials", op.partials, DType::f64, 1, op.partials.cols);
}

void check(const PrepareUpdate& op) {
  const Checker checker(op.name);
  checker.matrix("partials", op.partials, DType::f64, 1, op.partials.cols);
  checker.require(op.clip_norm >= 0, "clip_norm is negative");
}

// All but the columns.
void check_updated(std::string_view name, const ElementUpdate& op, bool takes_bf16_gradients) {
  const Checker checker(name);
  const int64_t elements = op.gradients.cols;
  checker.matrix("gradients", op.gradients, gradient_dtype(op.gradients, takes_bf16_gradients), 1, elements);
  if (op.master.given()) {
    checker.matrix("master", op.master, DType::f32, 1, elements);
  } else {
    checker.matrix("weights without masters", op.weights, DType::bf16, 1, elements);
  }
  if (op.weights.given()) {
    checker.real("weights", op.weights);
    checker.matrix("weights", op.weights, op.weights.dtype, 1, elements);
  }
}

void check_columns(std::string_view name, const ElementUpdate& op, size_t first, size_t end) {
  const Checker checker(name);
  for (size_t i = first; i < end; ++i)
    checker.matrix("a column of state", op.columns[i], DType::f32, 1, op.gradients.cols);
}

void check_update(std::string_view name, const ElementUpdate& op, size_t num_columns, bool takes_bf16_gradients) {
  check_updated(name, op, takes_bf16_gradients);
  check_columns(name, op, 0, num_columns);
}

void check_tensor_sums(std::string_view name, const Matrix& sums) {
  const Checker checker(name);
  checker.matrix("sums", sums, DType::f64, sums.rows, 2);
  checker.require(sums.rows > 0 && sums.stride == 2, "sums are not pairs that follow one another");
}

void check_sums_of(std::string_view, const ElementUpdate&) {}
void check_sums_of(std::string_view name, const TensorUpdate& op) { check_tensor_sums(name, op.sums); }
void check_sums_of(std::string_view name, const Adafactor& op) {
  check_tensor_sums(name, op.sums);
  Checker(name).matrix("counts", op.counts, DType::f64, 1, op.sums.rows);
}

#define GPTRAIN_CHECK_UPDATE(Op)                                           \
  void check(const Op& op) {                                               \
    check_update(Op::name, op, Op::num_columns, Op::takes_bf16_gradients); \
    check_sums_of(Op::name, op);                                           \
  }
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_CHECK_UPDATE)
#undef GPTRAIN_CHECK_UPDATE

#define GPTRAIN_CHECK_BLOCK_UPDATE(Op)                                                   \
  void check(const Op& op) {                                                             \
    const Checker checker(Op::name);                                                     \
    const int64_t elements = op.gradients.cols;                                          \
    check_updated(Op::name, op, Op::takes_bf16_gradients);                               \
    checker.require(elements % state_block == 0, "the range does not end with a block"); \
    for (size_t i = 0; i < op.scales.size(); ++i) {                                      \
      checker.matrix("codes", op.columns[i], DType::u8, 1, elements);                    \
      checker.matrix("scales", op.scales[i], DType::f32, 1, elements / state_block);     \
    }                                                                                    \
    check_columns(Op::name, op, op.scales.size(), Op::num_columns);                      \
  }
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_CHECK_BLOCK_UPDATE)
#undef GPTRAIN_CHECK_BLOCK_UPDATE

#define GPTRAIN_CHECK_TENSOR_NORMS(Op)                                 \
  void check(const Op& op) {                                           \
    check_update(Op::name, op.update, Op::Update::num_columns, false); \
    check_tensor_sums(Op::name, op.sums);                              \
  }
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_CHECK_TENSOR_NORMS)
#undef GPTRAIN_CHECK_TENSOR_NORMS

template <typename Op>
void check_ranges(const Checker& checker, const Op& op) {
  checker.matrix("gradients", op.gradients, DType::f32, 1, op.gradients.cols);
  checker.require(op.elements >= op.num_ranges && op.elements <= op.gradients.cols, "ranges are empty or overlap");
}
template <typename Op>
void check_moments(const Checker& checker, const Op& op) {
  for (const Matrix& moments : {op.rows, op.cols}) checker.matrix("moments", moments, DType::f32, 1, moments.cols);
  checker.matrix("means", op.means, DType::f64, 1, op.means.cols);
}

void check(const FactoredSums& op) {
  check_ranges(Checker(op.name), op);
  Checker(op.name).matrix("sums", op.sums, DType::f64, 1, op.sums.cols);
}
void check(const FactoredMoments& op) {
  const Checker checker(op.name);
  checker.matrix("sums", op.sums, DType::f64, 1, op.sums.cols);
  check_moments(checker, op);
  checker.require(op.means.cols == op.num_matrices, "a mean for each matrix");
  checker.require(op.beta2_decay < 0 && op.eps > 0, "beta2_decay is not negative or eps not positive");
}
void check(const FactoredDirection& op) {
  check_ranges(Checker(op.name), op);
  check_moments(Checker(op.name), op);
}

void check(const Cast& op) {
  const Checker checker(op.name);
  checker.real("from", op.from);
  checker.real("to", op.to);
  checker.matrix("to", op.to, op.to.dtype, op.from.rows, op.from.cols);
}

void check(const WeightedSum& op) {
  const Checker checker(op.name);
  checker.real("a", op.a);
  checker.optional("b", op.b, op.a.dtype, op.a.rows, op.a.cols);
  checker.real("to", op.to);
  checker.matrix("to", op.to, op.to.dtype, op.a.rows, op.a.cols);
  checker.optional("squared_norm", op.squared_norm, DType::f64, 1, 1);
  checker.require(!op.squared_norm.given() || op.least_norm > 0, "the least norm is not positive");
  for (const Matrix& operand : {op.a, op.b}) {
    checker.require(op.to.data != operand.data || operand.data == nullptr ||
                        (op.to.dtype == operand.dtype && op.to.stride == operand.stride),
                    "to may be an operand only in the same dtype and stride");
  }
}

void check(const Add& op) {
  const Checker checker(op.name);
  checker.matrix("from", op.from, op.from.dtype == DType::bf16 ? DType::bf16 : DType::f32, op.to.rows, op.to.cols);
  checker.matrix("to", op.to, DType::f32, op.to.rows, op.to.cols);
}

void check(const KeepGradients& op) {
  const Checker checker(op.name);
  checker.require(op.num_segments >= 0, "a negative number of segments");
  checker.matrix("gradients", op.gradients, DType::f32, 1, op.gradients.cols);
  checker.matrix("kept", op.kept, DType::bf16, 1, op.gradients.cols);
}

void check(const AddSums& op) {
  const Checker checker(op.name);
  checker.matrix("sums", op.sums, DType::f64, 1, op.gradient.cols);
  checker.matrix("gradient", op.gradient, DType::f32, 1, op.sums.cols);
}

void check(const Amax& op) {
  const Checker checker(op.name);
  checker.real("x", op.x);
  checker.tiles("x", op.x);
  checker.require(op.amax.given(), "there is no amax");
  checker.amax(op.amax, op.x);
}

void check(const Quantize& op) {
  const Checker checker(op.name);
  checker.matrix("x", op.x, DType::bf16, op.x.rows, op.x.cols);
  checker.require(op.x.rows > 1 && op.x.cols > 0, "x is no matrix");
  checker.tiles("x", op.x);
  checker.require(op.amax.given(), "there is no amax");
  checker.amax(op.amax, op.x);
  checker.require(op.rows.given() || op.transposed.given(), "neither copy is asked for");
  const DType fp8 = op.rows.given() ? op.rows.dtype : op.transposed.dtype;
  if (op.rows.given()) {
    checker.fp8("rows", op.rows);
    checker.matrix("rows", op.rows, fp8, op.x.rows, op.x.cols);
  }
  if (op.transposed.given()) {
    checker.fp8("transposed", op.transposed);
    checker.matrix("transposed", op.transposed, fp8, op.x.cols, op.x.rows);
  }
  checker.matrix("inverse_scale", op.inverse_scale, DType::f32, 1, 1);
  checker.optional("column_sums", op.column_sums, DType::f64, 1, op.x.cols);
}

void check(const ScaledProduct& op) {
  const Checker checker(op.name);
  checker.fp8("a", op.a);
  checker.fp8("b", op.b);
  checker.require(op.a.dtype == DType::f8e4m3 || op.b.dtype == DType::f8e4m3, "both factors are f8e5m2");
  checker.matrix("b", op.b, op.b.dtype, op.b.rows, op.a.cols);
  checker.matrix("a_scale", op.a_scale, DType::f32, 1, 1);
  checker.matrix("b_scale", op.b_scale, DType::f32, 1, 1);
  checker.optional("bias", op.bias, DType::bf16, 1, op.b.rows);
  checker.tiles("bias", op.bias);
  checker.real("c", op.c);
  checker.matrix("c", op.c, op.c.dtype, op.a.rows, op.b.rows);
  checker.tiles("c", op.c);
  checker.require(!op.accumulate || op.c.dtype == DType::f32, "a sum in bf16 is not added to");
}

namespace {

void check_block_codes(const Checker& checker, const Matrix& x, const Matrix& codes, const Matrix& scales) {
  checker.real("x", x);
  checker.matrix("codes", codes, DType::u8, x.rows, x.cols);
  checker.matrix("scales", scales, DType::f32, x.rows, code_blocks(x.cols));
}

}  // namespace

void check(const EncodeBlocks& op) { check_block_codes(Checker(op.name), op.x, op.codes, op.scales); }

void check(const DecodeBlocks& op) { check_block_codes(Checker(op.name), op.x, op.codes, op.scales); }

void check(const ProjectionMatrix& op) {
  const Checker checker(op.name);
  checker.require(op.kind != ProjectionKind::rows, "a choice of rows has no matrix");
  checker.require(op.sample_ids != nullptr, "there are no sample_ids");
  checker.real("s", op.s);
  checker.sequences(op.s.rows, op.sequence_length);
  checker.require(op.kind != ProjectionKind::dct || op.s.cols <= op.sequence_length, "there are fewer frequencies");
}

void check(const SampleRows& op) {
  const Checker checker(op.name);
  checker.require(op.sample_ids != nullptr, "there are no sample_ids");
  checker.real("x", op.x);
  checker.sequences(op.x.rows, op.sequence_length);
  const int64_t sequences = op.x.rows / op.sequence_length;
  checker.require(op.y.rows > 0 && op.y.rows % sequences == 0 && op.y.rows <= op.x.rows,
                  "y has not as many rows of each sequence, at most all");
  checker.matrix("y", op.y, op.x.dtype, op.y.rows, op.x.cols);
}

void check(const BiasGradient& op) {
  const Checker checker(op.name);
  checker.real("dy", op.dy);
  checker.matrix("d_bias", op.d_bias, DType::f32, 1, op.dy.cols);
}

void require_scratch(std::string_view op, int64_t needed, int64_t available) {
  if (needed > available)
    throw Error(ExitCode::device, "{} needs {} bytes of scratch memory and has {}", op, needed, available);
}

}  // namespace gptrain
