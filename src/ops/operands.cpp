#include "ops/operands.h"

#include <fmt/format.h>

#include "ops/few_bits.h"

namespace gptrain::inline ops {

using namespace forms;

namespace {

void visit_sequences(int64_t num_rows, const TokenRows& token_rows, OperandVisitor& visit) {
  visit.require(token_rows.is_sound(), "the rows of a sequence are not one or two runs of its tokens");
  if (token_rows.length > 0 && !token_rows.divides(num_rows))
    visit.require(false, fmt::format("{} rows are not whole sequences of {} tokens", num_rows, token_rows.length));
}

void visit_dropout(const Dropout& dropout, const TokenRows& token_rows, OperandVisitor& visit) {
  visit.require(dropout.p >= 0 && dropout.p < 1, "dropout probability is not in [0, 1)");
  visit.require(dropout.p == 0 || dropout.sample_ids != nullptr, "dropout has no sample_ids");
  visit.require(dropout.p == 0 || token_rows.is_sound(), "the rows of a sequence are not runs of its tokens");
  visit.require(dropout.first_row >= 0 && dropout.first_head >= 0, "dropout begins before the first row or head");
}

void visit_vocabulary_slice(int64_t first_token, int64_t num_tokens, int64_t rows, OperandVisitor& visit) {
  visit.require(num_tokens == 0 ? first_token == 0 : first_token >= 0 && first_token + rows <= num_tokens,
                "the token table is no slice of the vocabulary");
}

// Visits the optional amax of an output.
void visit_amax(const Matrix& amax, const Matrix& output, OperandVisitor& visit) {
  visit.writes("amax", amax, optional(in_tiles(vector(DType::f32, amax_parts))));
  visit.require(!amax.given() || output.dtype == DType::bf16, "only a bf16 output can have an amax");
}

// Visits the FP8 copies of a bf16 matrix of the given size.
void visit_fp8(const Fp8Copies& to, int64_t rows, int64_t cols, OperandVisitor& visit) {
  visit.require(rows > 1, "the matrix of FP8 copies has one row");
  visit.reads("amax", to.amax, to.amax.cols == 1 ? vector(DType::f32, 1) : in_tiles(vector(DType::f32, amax_parts)));
  visit.require(to.rows.given() || to.transposed.given(), "neither copy is asked for");
  visit.writes("rows", to.rows, optional(fp8(rows, cols)));
  visit.writes("transposed", to.transposed, optional(fp8(cols, rows)));
  visit.require(!to.rows.given() || !to.transposed.given() || to.rows.dtype == to.transposed.dtype,
                "the copies are of two dtypes");
  visit.writes("inverse_scale", to.inverse_scale, exactly(DType::f32, 1, 1));
  visit.writes("column_sums", to.column_sums, optional(vector(DType::f64, cols)));
  visit.updates("largest", to.largest, optional(exactly(DType::f32, 1, 1)));
}

void require_no_alias(std::string_view rule, const Matrix& a, const Matrix& b, OperandVisitor& visit) {
  visit.require(a.data != b.data || a.data == nullptr, rule);
}

void require_same_layout(std::string_view rule, const Matrix& a, const Matrix& b, OperandVisitor& visit) {
  visit.require(a.data != b.data || a.data == nullptr || (a.dtype == b.dtype && a.stride == b.stride), rule);
}

bool divides(int64_t divisor, int64_t number) { return divisor > 0 && number % divisor == 0; }

template <typename Op>
void visit_norm_statistics(const Op& op, Access access, OperandVisitor& visit) {
  visit.operand("rstd", op.rstd, access, vector(DType::f32, op.x.rows));
  if (op.kind == NormKind::layernorm) visit.operand("mean", op.mean, access, vector(DType::f32, op.x.rows));
}

int64_t activation_cols(ActivationKind kind, const Matrix& narrow) {
  return is_gated(kind) ? 2 * narrow.cols : narrow.cols;
}

// `part`: null if the op has whole sequences.
template <typename Op>
void visit_attention(const Op& op, const AttentionPart* part, Access results, OperandVisitor& visit) {
  const int64_t rows = op.batch * op.sequence_length;
  const int64_t kv_rows = part != nullptr ? part->keys : rows;
  const DType dtype = op.q.dtype;
  visit.require(op.batch > 0 && op.sequence_length > 0 && op.head_size > 0, "a size is not positive");
  visit.require(divides(op.num_kv_heads, op.num_heads), "num_kv_heads must divide num_heads");
  visit.require(op.softcap >= 0, "softcap is negative");
  visit.reads("q", op.q, real(rows, op.num_heads * op.head_size));
  visit.reads("k", op.k, exactly(dtype, kv_rows, op.num_kv_heads * op.head_size));
  visit.reads("v", op.v, exactly(dtype, kv_rows, op.num_kv_heads * op.head_size));
  const DType result = part != nullptr && is_written(results) ? DType::f32 : dtype;
  visit.operand("o", op.o, results, exactly(result, rows, op.num_heads * op.head_size));
  visit.operand("lse", op.lse, results, exactly(DType::f32, op.batch * op.num_heads, op.sequence_length));
  visit.looks_up("sinks", op.sinks, optional(vector(DType::f32, op.num_heads)));
  visit_dropout(op.dropout, TokenRows::whole(op.sequence_length), visit);
  const AttentionPattern& pattern = op.mask.pattern;
  visit.require(pattern.sound(), "the pattern has a size that its kind cannot have");
  visit.require(pattern.column_sets > 0 && op.num_heads % pattern.column_sets == 0,
                "the sets of columns do not divide the heads");
  visit.require(op.mask.causal || (pattern == AttentionPattern{} && op.mask.document_starts == nullptr),
                "a pattern and documents need a causal mask");
  visit.require(op.mask.max_documents >= 0 && (op.mask.max_documents == 0 || op.mask.document_starts != nullptr),
                "room for documents is negative, or given without documents");
}

// Visits the operands of QueryKeyForward and QueryKeyBackward that belong to heads. q and k: the matrices that the
// rotation changes.
template <typename Op>
void visit_heads(const Op& op, const Matrix& q, const Matrix& k, Access statistics, OperandVisitor& visit) {
  visit.require(op.head_size > 0, "head_size is not positive");
  visit.require(!op.rotary || op.head_size % 2 == 0, "rotary needs an even head_size");
  visit.require(divides(op.head_size, q.cols) && divides(op.head_size, k.cols), "columns are not whole heads");
  visit_sequences(q.rows, op.token_rows, visit);
  visit.require(op.q_gamma.given() == op.k_gamma.given(), "q_gamma and k_gamma are given both or neither");
  if (!op.q_gamma.given() || op.head_size <= 0) return;
  visit.looks_up("q_gamma", op.q_gamma, vector(DType::f32, op.head_size));
  visit.looks_up("k_gamma", op.k_gamma, vector(DType::f32, op.head_size));
  visit.operand("rstd", op.rstd, statistics, exactly(DType::f32, q.rows, (q.cols + k.cols) / op.head_size));
}

template <typename Op>
void visit_codes(const Op& op, const Matrix& beside, Access access, OperandVisitor& visit) {
  visit.require(op.codes.given() == (op.code_bits != 0), "codes come with their width");
  if (op.code_bits == 0) return;
  visit.require(is_code_width(op.code_bits), "codes have 2, 3 or 4 bits");
  visit.require(!is_gated(op.kind), "a gated activation has no codes");
  visit.operand("codes", op.codes, access, exactly(DType::u8, beside.rows, code_bytes(beside.cols, op.code_bits)));
}

}  // namespace

void for_each_operand(const EmbeddingForward& op, OperandVisitor& visit) {
  visit.writes("x", op.x, real());
  visit.looks_up("token_table", op.token_table, real(Form::any, op.x.cols));
  visit.looks_up("position_table", op.position_table,
                 optional(table(op.token_table.dtype, op.token_rows.end(), op.x.cols)));
  visit_sequences(op.x.rows, op.token_rows, visit);
  visit_vocabulary_slice(op.first_token, op.num_tokens, op.token_table.rows, visit);
  visit_dropout(op.dropout, op.token_rows, visit);
}

void for_each_operand(const EmbeddingBackward& op, OperandVisitor& visit) {
  const auto access = [](bool accumulate) { return accumulate ? Access::uncounted_write : Access::write; };
  visit.reads("dx", op.dx, real());
  visit.operand("d_token_table", op.d_token_table, access(op.accumulate_token), table(DType::f32, 1, op.dx.cols));
  visit.operand("d_position_table", op.d_position_table, access(op.accumulate_position),
                optional(table(DType::f32, op.token_rows.end(), op.dx.cols)));
  visit_sequences(op.dx.rows, op.token_rows, visit);
  visit_vocabulary_slice(op.first_token, op.num_tokens, op.d_token_table.rows, visit);
  visit_dropout(op.dropout, op.token_rows, visit);
}

void for_each_operand(const NormForward& op, OperandVisitor& visit) {
  visit.writes("y", op.y, real(op.x.rows, op.x.cols));
  visit.reads("x", op.x, real());
  visit.reads("gamma", op.gamma, vector(DType::f32, op.x.cols));
  visit.reads("beta", op.beta, optional(vector(DType::f32, op.x.cols)));
  visit_amax(op.amax, op.y, visit);
  visit_norm_statistics(op, Access::write, visit);
  if (!op.branch.given()) return;
  visit.reads("branch", op.branch, like(op.y));
  visit.writes("x_out", op.x_out, like(op.x));
  visit_dropout(op.dropout, op.token_rows, visit);
}

void for_each_operand(const NormBackward& op, OperandVisitor& visit) {
  visit.reads("dy", op.dy, real(op.x.rows, op.x.cols));
  visit.reads("x", op.x, real());
  visit.reads("gamma", op.gamma, vector(DType::f32, op.x.cols));
  visit_norm_statistics(op, Access::read, visit);
  visit.reads("dx_residual", op.dx_residual, optional(like(op.x)));
  visit.writes("dx", op.dx, like(op.x));
  visit.writes("gamma_sums", op.gamma_sums, vector(DType::f64, op.x.cols));
  visit.writes("beta_sums", op.beta_sums, optional(vector(DType::f64, op.x.cols)));
  visit_amax(op.amax, op.dx, visit);
}

void for_each_operand(const ResidualAdd& op, OperandVisitor& visit) {
  visit.reads("branch", op.branch, real(op.x.rows, op.x.cols));
  visit.reads("x", op.x, real());
  visit.writes("x_out", op.x_out, like(op.x));
  visit_dropout(op.dropout, op.token_rows, visit);
}

void for_each_operand(const BranchBackward& op, OperandVisitor& visit) {
  visit.writes("d_branch", op.d_branch, real(op.dx.rows, op.dx.cols));
  visit.reads("dx", op.dx, real());
  visit_dropout(op.dropout, op.token_rows, visit);
  visit_amax(op.amax, op.d_branch, visit);
}

void for_each_operand(const LinearForward& op, OperandVisitor& visit) {
  const bool widened = op.y.dtype == DType::f32 && op.x.dtype != DType::f32;
  visit.reads("x", op.x, real());
  visit.reads("w", op.w, exactly(op.x.dtype, Form::any, op.x.cols));
  visit.reads("bias", op.bias, optional(vector(op.x.dtype, op.w.rows)));
  visit.writes("y", op.y, exactly(widened ? DType::f32 : op.x.dtype, op.x.rows, op.w.rows));
  visit.writes("pre_activation", op.pre_activation, optional(exactly(op.x.dtype, op.x.rows, op.w.rows)));
  if (!op.pre_activation.given()) return;
  visit.require(!widened, "y must be as x is where there is a pre-activation");
  require_no_alias("y may not be the pre-activation", op.y, op.pre_activation, visit);
}

void for_each_operand(const LinearBackwardInput& op, OperandVisitor& visit) {
  visit.reads("dy", op.dy, real());
  visit.reads("w", op.w, exactly(op.dy.dtype, op.dy.cols, Form::any));
  visit.writes("dx", op.dx, exactly(op.dy.dtype, op.dy.rows, op.w.cols));
  visit.reads("pre_activation", op.pre_activation, optional(like(op.dx)));
  require_no_alias("dx may not be the pre-activation", op.dx, op.pre_activation, visit);
}

void for_each_operand(const LinearBackwardWeight& op, OperandVisitor& visit) {
  visit.reads("x", op.x, real());
  visit.reads("dy", op.dy, exactly(op.x.dtype, op.x.rows, op.dy.cols));
  visit.operand("dw", op.dw, summed(op.accumulate), exactly(DType::f32, op.dy.cols, op.x.cols));
  visit.operand("d_bias", op.d_bias, summed(op.accumulate), optional(vector(DType::f32, op.dy.cols)));
}

void for_each_operand(const QueryKeyForward& op, OperandVisitor& visit) {
  visit.reads("q", op.q, real());
  visit.reads("k", op.k, exactly(op.q.dtype, op.q.rows, op.k.cols));
  visit_heads(op, op.q, op.k, Access::write, visit);
  visit.writes("q_out", op.q_out, like(op.q));
  visit.writes("k_out", op.k_out, like(op.k));
  if (!op.q_gamma.given()) return;
  require_no_alias("q_out may not be q where there is a norm", op.q_out, op.q, visit);
  require_no_alias("k_out may not be k where there is a norm", op.k_out, op.k, visit);
}

void for_each_operand(const QueryKeyBackward& op, OperandVisitor& visit) {
  visit.updates("dq", op.dq, real());
  visit.updates("dk", op.dk, exactly(op.dq.dtype, op.dq.rows, op.dk.cols));
  visit_heads(op, op.dq, op.dk, Access::read, visit);
  if (!op.q_gamma.given()) return;
  visit.reads("q", op.q, like(op.dq));
  visit.reads("k", op.k, like(op.dk));
  visit.operand("q_gamma_sums", op.q_gamma_sums, Access::uncounted_write, vector(DType::f64, op.head_size));
  visit.operand("k_gamma_sums", op.k_gamma_sums, Access::uncounted_write, vector(DType::f64, op.head_size));
}

namespace {

void visit_forward(const AttentionForward& op, const AttentionPart* part, OperandVisitor& visit) {
  visit_attention(op, part, Access::write, visit);
  visit.operand("largest", op.largest, Access::uncounted_write, optional(vector(DType::f32, op.num_heads)));
  visit.require(!op.largest.given() || op.softcap == 0, "the largest score is not known beside a softcap");
}

void visit_backward(const AttentionBackward& op, const AttentionPart* part, OperandVisitor& visit) {
  visit_attention(op, part, Access::read, visit);
  const DType result = part != nullptr ? DType::f32 : op.q.dtype;
  visit.reads("d_o", op.d_o, like(op.o));
  visit.writes("dq", op.dq, exactly(result, op.q.rows, op.q.cols));
  visit.writes("dk", op.dk, exactly(result, op.k.rows, op.k.cols));
  visit.writes("dv", op.dv, exactly(result, op.v.rows, op.v.cols));
  visit.require(op.sinks.given() == op.d_sinks.given(), "sinks and d_sinks are given both or neither");
  visit.operand("d_sinks", op.d_sinks, Access::uncounted_write, optional(vector(DType::f64, op.num_heads)));
}

void visit_part(int64_t batch, const AttentionMask& mask, const AttentionPart& part, OperandVisitor& visit) {
  visit.require(batch == 1 && part.keys > 0 && part.first_query >= 0 && part.first_key >= 0,
                "a part is some queries and keys of one sequence");
  visit.require(mask.pattern.one_run(), "a part has one run of keys");
}

}  // namespace

void for_each_operand(const AttentionForward& op, OperandVisitor& visit) { visit_forward(op, nullptr, visit); }
void for_each_operand(const AttentionBackward& op, OperandVisitor& visit) { visit_backward(op, nullptr, visit); }

void for_each_operand(const AttentionPartForward& op, OperandVisitor& visit) {
  visit_part(op.of.batch, op.of.mask, op.part, visit);
  visit_forward(op.of, &op.part, visit);
}

void for_each_operand(const AttentionPartBackward& op, OperandVisitor& visit) {
  visit_part(op.of.batch, op.of.mask, op.part, visit);
  visit_backward(op.of, &op.part, visit);
}

void for_each_operand(const MergeAttention& op, OperandVisitor& visit) {
  visit.reads("part_o", op.part_o, exactly(DType::f32, Form::any, Form::any));
  visit.reads("part_lse", op.part_lse, exactly(DType::f32, Form::any, op.part_o.rows));
  visit.require(divides(op.part_lse.rows, op.part_o.cols), "columns are not whole heads");
  visit.updates("o", op.o, like(op.part_o));
  visit.updates("lse", op.lse, like(op.part_lse));
}

namespace {

// The rules of an activation whose output is written as FP8 copies only.
template <typename Op>
void visit_fp8_of_activation(const Op& op, const Matrix& output, OperandVisitor& visit) {
  visit.require(!output.given() && !op.amax.given(), "an output with FP8 copies is not stored");
  visit.require(op.code_bits == 0, "codes are not written or read beside FP8 copies");
  visit.require(!is_gated(op.kind) || op.x.cols % 32 == 0, "the halves of x are not whole tiles of 16 columns");
  visit.reads("bias", op.bias, optional(in_tiles(vector(DType::bf16, op.x.cols))));
}

Form bf16_tiles(int64_t rows = Form::any, int64_t cols = Form::any) {
  return in_tiles(exactly(DType::bf16, rows, cols));
}

}  // namespace

void for_each_operand(const ActivationForward& op, OperandVisitor& visit) {
  if (op.fp8.given()) {
    visit.reads("x", op.x, bf16_tiles());
    visit_fp8_of_activation(op, op.y, visit);
    return visit_fp8(op.fp8, op.x.rows, activated_cols(op.kind, op.x.cols), visit);
  }
  visit.writes("y", op.y, real());
  visit_codes(op, op.y, Access::write, visit);
  visit.reads("x", op.x, exactly(op.y.dtype, op.y.rows, activation_cols(op.kind, op.y)));
  visit.reads("bias", op.bias, optional(vector(op.y.dtype, op.x.cols)));
  visit_amax(op.amax, op.y, visit);
}

void for_each_operand(const ActivationBackward& op, OperandVisitor& visit) {
  if (op.fp8.given()) {
    visit.reads("dy", op.dy, bf16_tiles());
    visit.reads("x", op.x, bf16_tiles(op.dy.rows, activation_cols(op.kind, op.dy)));
    visit_fp8_of_activation(op, op.dx, visit);
    return visit_fp8(op.fp8, op.x.rows, op.x.cols, visit);
  }
  visit.reads("dy", op.dy, real());
  visit_codes(op, op.dy, Access::read, visit);
  visit.writes("dx", op.dx, exactly(op.dy.dtype, op.dy.rows, activation_cols(op.kind, op.dy)));
  if (op.codes.given()) {
    visit.require(!op.x.given() && !op.bias.given(), "x and bias are not read beside codes");
  } else {
    visit.reads("x", op.x, like(op.dx));
    visit.reads("bias", op.bias, optional(vector(op.dy.dtype, op.x.cols)));
    require_no_alias("dx may not be x", op.dx, op.x, visit);
  }
  visit_amax(op.amax, op.dx, visit);
}

void for_each_operand(const CrossEntropyStatistics& op, OperandVisitor& visit) {
  visit.reads("logits", op.logits, real());
  visit.require(op.vocab_size > 0 && op.first_token >= 0, "vocab_size is not positive, or first_token negative");
  visit.writes("statistics", op.statistics, exactly(DType::f32, 3, op.logits.rows));
}

void for_each_operand(const CrossEntropy& op, OperandVisitor& visit) {
  visit.reads("logits", op.logits, real());
  if (op.statistics.given()) {
    visit.require(op.vocab_size > 0 && op.first_token >= 0, "vocab_size is not positive, or first_token negative");
    visit.require(op.statistics.rows % 3 == 0, "statistics are not three rows for each slice");
    visit.reads("statistics", op.statistics, exactly(DType::f32, op.statistics.rows, op.logits.rows));
  } else {
    visit.require(op.vocab_size > 0 && op.vocab_size <= op.logits.cols, "vocab_size is not in [1, logits.cols]");
    visit.require(op.first_token == 0, "a slice of the vocabulary needs the statistics of all");
  }
  visit.writes("losses", op.losses, vector(DType::f32, op.logits.rows));
  visit.writes("d_logits", op.d_logits, optional(real(op.logits.rows, op.logits.cols)));
  if (op.d_logits.given())
    require_same_layout("d_logits may be logits only in the same dtype and stride", op.d_logits, op.logits, visit);
}

void for_each_operand(const AccumulateLoss& op, OperandVisitor& visit) {
  visit.reads("losses", op.losses, vector(DType::f32, op.losses.cols));
}

void for_each_operand(const Cast& op, OperandVisitor& visit) {
  visit.reads("from", op.from, real());
  visit.writes("to", op.to, real(op.from.rows, op.from.cols));
}

void for_each_operand(const WeightedSum& op, OperandVisitor& visit) {
  visit.reads("a", op.a, real());
  visit.reads("b", op.b, optional(like(op.a)));
  visit.writes("to", op.to, real(op.a.rows, op.a.cols));
  visit.reads("squared_norm", op.squared_norm, optional(exactly(DType::f64, 1, 1)));
  visit.require(!op.squared_norm.given() || op.least_norm > 0, "the least norm is not positive");
  for (const Matrix& operand : {op.a, op.b})
    require_same_layout("to may be an operand only in the same dtype and stride", op.to, operand, visit);
}

void for_each_operand(const Add& op, OperandVisitor& visit) {
  const DType from = op.from.dtype == DType::bf16 ? DType::bf16 : DType::f32;
  visit.reads("from", op.from, exactly(from, op.to.rows, op.to.cols));
  visit.updates("to", op.to, exactly(DType::f32, op.to.rows, op.to.cols));
}

void for_each_operand(const AddSums& op, OperandVisitor& visit) {
  visit.operand("gradient", op.gradient, summed(op.accumulate), vector(DType::f32, Form::any));
  visit.reads("sums", op.sums, exactly(DType::f64, Form::any, Form::any));
  visit.require(op.first >= 0 && op.first + op.sums.cols <= op.gradient.cols, "the sums are not those of elements");
}

void for_each_operand(const Amax& op, OperandVisitor& visit) {
  visit.reads("x", op.x, in_tiles(real()));
  visit.require(op.amax.given(), "there is no amax");
  visit_amax(op.amax, op.x, visit);
}

void for_each_operand(const Quantize& op, OperandVisitor& visit) {
  visit.reads("x", op.x, bf16_tiles());
  visit_fp8(op.to, op.x.rows, op.x.cols, visit);
}

void for_each_operand(const RollAmaxes& op, OperandVisitor& visit) {
  visit.reads("amaxes", op.amaxes, vector(DType::f32, op.amaxes.cols));
  visit.updates("history", op.history, exactly(DType::f32, Form::any, op.amaxes.cols));
  visit.reads("initial", op.initial, like(op.amaxes));
  visit.operand("forecast", op.forecast, Access::update, like(op.amaxes));
}

void for_each_operand(const ScaledProduct& op, OperandVisitor& visit) {
  visit.reads("a", op.a, fp8());
  visit.reads("b", op.b, fp8(Form::any, op.a.cols));
  visit.require(op.a.dtype == DType::f8e4m3 || op.b.dtype == DType::f8e4m3, "both factors are f8e5m2");
  visit.looks_up("a_scale", op.a_scale, exactly(DType::f32, 1, 1));
  visit.looks_up("b_scale", op.b_scale, exactly(DType::f32, 1, 1));
  visit.reads("bias", op.bias, optional(in_tiles(vector(DType::bf16, op.b.rows))));
  visit.operand("c", op.c, summed(op.accumulate), in_tiles(real(op.a.rows, op.b.rows)));
  visit.require(!op.accumulate || op.c.dtype == DType::f32, "a sum in bf16 is not added to");
}

namespace {

template <typename Op>
void visit_block_codes(const Op& op, Access of_x, Access of_codes, OperandVisitor& visit) {
  visit.require(is_block_code_width(op.bits), "codes have neither 8 nor 4 nor 1 bits");
  visit.operand("x", op.x, of_x, real());
  visit.require(op.bits == 8 || op.x.dtype == DType::f32, "x with codes of few bits is not f32");
  visit.operand("codes", op.codes, of_codes, exactly(DType::u8, op.x.rows, code_bytes_of(op.x.cols, op.bits)));
  visit.operand("scales", op.scales, of_codes, exactly(DType::f32, op.x.rows, code_blocks(op.x.cols)));
}

}  // namespace

void for_each_operand(const EncodeBlocks& op, OperandVisitor& visit) {
  visit_block_codes(op, Access::read, Access::write, visit);
}

void for_each_operand(const DecodeBlocks& op, OperandVisitor& visit) {
  visit_block_codes(op, Access::write, Access::read, visit);
}

void for_each_operand(const NormalValues& op, OperandVisitor& visit) {
  visit.writes("to", op.to, real());
  visit.require(op.to.dtype != DType::f16, "to is f16");
  visit.require(op.first >= 0 && (op.to.rows <= 1 || op.row_step >= 0), "an index is negative");
}

void for_each_operand(const ProjectionMatrix& op, OperandVisitor& visit) {
  visit.writes("s", op.s, real());
  visit.require(op.kind != ProjectionKind::rows, "a choice of rows has no matrix");
  visit.require(op.sample_ids != nullptr, "there are no sample_ids");
  visit_sequences(op.s.rows, TokenRows::whole(op.sequence_length), visit);
  visit.require(op.kind != ProjectionKind::dct || op.s.cols <= op.sequence_length, "there are fewer frequencies");
}

void for_each_operand(const SampleRows& op, OperandVisitor& visit) {
  visit.writes("y", op.y, exactly(op.x.dtype, Form::any, op.x.cols));
  visit.looks_up("x", op.x, real());
  visit.require(op.sample_ids != nullptr, "there are no sample_ids");
  visit_sequences(op.x.rows, TokenRows::whole(op.sequence_length), visit);
  visit.require(op.sequence_length > 0 && divides(op.x.rows / op.sequence_length, op.y.rows) && op.y.rows <= op.x.rows,
                "y has not as many rows of each sequence, at most all");
}

void for_each_operand(const BiasGradient& op, OperandVisitor& visit) {
  visit.reads("dy", op.dy, real());
  visit.operand("d_bias", op.d_bias, summed(op.accumulate), vector(DType::f32, op.dy.cols));
}

}  // namespace gptrain::ops
