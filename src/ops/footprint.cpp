#include "ops/footprint.h"

#include <fmt/format.h>
#include <string_view>

#include "base/dtype.h"
#include "ops/cpu/scratch.h"
#include "ops/gpu_scratch.h"
#include "ops/key_tiles.h"
#include "ops/operands.h"

namespace gptrain::inline ops {
namespace {

// Adds up the bytes of counted operands. Operands both read and written count twice.
class ByteCounter final : public OperandVisitor {
 public:
  void operand(std::string_view, const Matrix& matrix, Access access, const Form&) override {
    if (access == Access::uncounted_read || access == Access::uncounted_write) return;
    bytes_ += matrix.bytes() * (access == Access::update ? 2 : 1);
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

Flops product_flops(int64_t m, int64_t n, int64_t k) {
  return Flops{2} * static_cast<Flops>(m) * static_cast<Flops>(n) * static_cast<Flops>(k);
}

bool on_cpu(const Target& target) { return target.kind == Target::Kind::cpu; }

template <typename Op>
int64_t scratch_bytes(const Op& op, const Target& target) {
  return on_cpu(target) ? cpu_scratch_bytes(op, target.num_threads) : gpu_scratch_bytes(op);
}

ProductShape product_shape(DType dtype, int64_t m, int64_t n, int64_t k) {
  return {.kind = ProductShape::Kind::plain, .dtype = dtype, .m = m, .n = n, .k = k};
}

// Counts one [rows, in] x [in, out] product: any of a linear's three.
template <typename Op>
void count_linear(const Op& op, const Matrix& w, int64_t rows, Footprint& footprint) {
  footprint.model_flops = product_flops(rows, op.true_out >= 0 ? op.true_out : w.rows, w.cols);
  footprint.executed_flops = product_flops(rows, w.rows, w.cols);
}

// RETURNS twice the (query, key) pairs of a sequence that model FLOPs count, summed over its heads.
Flops twice_counted_pairs(const AttentionMask& mask, int64_t tokens, int64_t heads) {
  return mask.causal ? mask.pattern.twice_counted_pairs(tokens, heads) : 2 * wide(heads) * wide(tokens) * wide(tokens);
}

// Counts products of attention over the (query, key) pairs of each head: model FLOPs over attending pairs, executed
// FLOPs over whole tiles. Pairs in different documents count as attending, since only the device knows them.
// `part`: null if the op has whole sequences.
template <typename Op>
void count_attention(const Op& op, const AttentionPart* part, int64_t products_in_model, int64_t products_executed,
                     Footprint& footprint) {
  footprint.products.dtype = op.q.dtype;
  footprint.products.count = op.batch * op.num_heads;
  footprint.products.m = footprint.products.n = op.sequence_length;
  footprint.products.k = op.head_size;
  const auto sequences = static_cast<Flops>(op.batch);
  const Flops pairs = part != nullptr ? wide(op.num_heads) * twice_counted_pairs(op.mask, op.sequence_length, *part)
                                      : twice_counted_pairs(op.mask, op.sequence_length, op.num_heads);
  footprint.model_flops = pairs * static_cast<Flops>(op.head_size) * sequences * static_cast<Flops>(products_in_model);
  const int64_t tiles = part != nullptr ? executed_attention_tiles(op.mask, op.sequence_length, *part, op.num_heads)
                                        : executed_attention_tiles(op.mask, op.sequence_length, op.num_heads);
  footprint.executed_flops = product_flops(attention_query_tile, attention_key_tile, op.head_size) *
                             static_cast<Flops>(tiles) * sequences * static_cast<Flops>(products_executed);
}

// Adds an op's costs beside those of counted operands and scratch memory. Most ops have none.
template <typename Op>
void add_cost(const Op&, const Target&, Footprint&) {}

void add_cost(const EmbeddingForward& op, const Target&, Footprint& footprint) {
  footprint.bytes_moved += op.x.bytes() + op.x.rows * static_cast<int64_t>(sizeof(int32_t));
}

void add_cost(const EmbeddingBackward& op, const Target&, Footprint& footprint) {
  footprint.bytes_moved += op.dx.bytes();
}

void add_cost(const LinearForward& op, const Target&, Footprint& footprint) {
  count_linear(op, op.w, op.x.rows, footprint);
  footprint.products = product_shape(op.x.dtype, op.x.rows, op.w.rows, op.w.cols);
}

void add_cost(const LinearBackwardInput& op, const Target&, Footprint& footprint) {
  count_linear(op, op.w, op.dy.rows, footprint);
  footprint.products = product_shape(op.dy.dtype, op.dy.rows, op.w.cols, op.w.rows);
}

void add_cost(const LinearBackwardWeight& op, const Target&, Footprint& footprint) {
  count_linear(op, op.dw, op.dy.rows, footprint);
  if (op.true_rows >= 0)
    footprint.model_flops = product_flops(op.true_rows, op.true_out >= 0 ? op.true_out : op.dw.rows, op.dw.cols);
  footprint.products = product_shape(op.dy.dtype, op.dw.rows, op.dw.cols, op.dy.rows);
}

// RETURNS why a target's library does not compute an op: no library computes parts, as if they had such a pattern.
template <typename Op>
OwnAttention own_kernels(const Op& op, const AttentionPart* part, const Target& target) {
  if (on_cpu(target)) return OwnAttention::no;
  return part != nullptr ? OwnAttention::pattern : own_attention(op, target.compute_capability);
}

void add_forward_cost(const AttentionForward& op, const AttentionPart* part, const Target& target,
                      Footprint& footprint) {
  count_attention(op, part, 2, 2, footprint);  // q k^T, p v
  footprint.products.kind = ProductShape::Kind::attention_forward;
  footprint.products.own = own_kernels(op, part, target);
}

// dv, dp, dq, dk; executed: q k^T once more. gptrain's own GPU kernel uses no atomics, so it computes the scores and dp
// twice: for dk and dv, and for dq.
void add_backward_cost(const AttentionBackward& op, const AttentionPart* part, const Target& target,
                       Footprint& footprint) {
  const OwnAttention own = own_kernels(op, part, target);
  count_attention(op, part, 4, own == OwnAttention::no ? library_backward_products : own_backward_products, footprint);
  footprint.products.kind = ProductShape::Kind::attention_backward;
  footprint.products.own = own;
}

void add_cost(const AttentionForward& op, const Target& target, Footprint& footprint) {
  add_forward_cost(op, nullptr, target, footprint);
}
void add_cost(const AttentionBackward& op, const Target& target, Footprint& footprint) {
  add_backward_cost(op, nullptr, target, footprint);
}
void add_cost(const AttentionPartForward& op, const Target& target, Footprint& footprint) {
  add_forward_cost(op.of, &op.part, target, footprint);
}
void add_cost(const AttentionPartBackward& op, const Target& target, Footprint& footprint) {
  add_backward_cost(op.of, &op.part, target, footprint);
}

// Rows and columns are summed in two passes.
void add_cost(const FactoredSums& op, const Target&, Footprint& footprint) {
  footprint.bytes_moved += 2 * op.elements * dtype_bytes(DType::f32);
}

void add_cost(const FactoredDirection& op, const Target&, Footprint& footprint) {
  footprint.bytes_moved += 2 * op.elements * dtype_bytes(DType::f32);
}

void add_cost(const ScaledProduct& op, const Target&, Footprint& footprint) {
  footprint.executed_flops = product_flops(op.a.rows, op.b.rows, op.a.cols);
  footprint.model_flops = op.true_terms >= 0 ? Flops{2} * static_cast<Flops>(op.true_terms) : footprint.executed_flops;
  footprint.products = product_shape(op.a.dtype, op.a.rows, op.b.rows, op.a.cols);
}

void add_cost(const SampleRows& op, const Target&, Footprint& footprint) { footprint.bytes_moved += op.y.bytes(); }

// Counts the bytes of an op on rows of experts for the rows that it is expected to use. `rows` is their bound. RETURNS
// the rows.
int64_t count_expected_rows(int64_t rows, int64_t expected, Footprint& footprint) {
  if (expected < 0 || expected >= rows) return rows;
  const double share = static_cast<double>(expected) / static_cast<double>(rows);
  footprint.bytes_moved = static_cast<int64_t>(static_cast<double>(footprint.bytes_moved) * share);
  return expected;
}

// Counts the products of all experts: as many multiply-adds as one product of all rows, in products of equally many
// rows. `weights`: bytes of the experts' matrices, which are read or written for any number of rows. RETURNS the rows
// of an expert.
int64_t count_grouped(const Matrix& x, int64_t expected, const Matrix& weights, const Matrix& y, const Matrix& offsets,
                      Footprint& footprint) {
  footprint.bytes_moved -= weights.bytes();
  const int64_t rows = count_expected_rows(x.rows, expected, footprint);
  const int64_t experts = std::max<int64_t>(1, offsets.cols - 1);  // ops that a backend will refuse are asked, too
  footprint.bytes_moved += weights.bytes();
  footprint.model_flops = footprint.executed_flops = product_flops(rows, y.cols, x.cols);
  const int64_t of_expert = (rows + experts - 1) / experts;
  footprint.products = product_shape(x.dtype, of_expert, y.cols, x.cols);
  footprint.products.count = experts;
  return of_expert;
}

void add_cost(const GroupedLinearForward& op, const Target&, Footprint& footprint) {
  count_grouped(op.x, op.expected_rows, op.w, op.y, op.offsets, footprint);
}

void add_cost(const GroupedLinearBackwardInput& op, const Target&, Footprint& footprint) {
  count_grouped(op.dy, op.expected_rows, op.w, op.dx, op.offsets, footprint);
}

void add_cost(const GroupedLinearBackwardWeight& op, const Target&, Footprint& footprint) {
  const int64_t passes = op.accumulate ? 2 : 1;  // over the gradient
  footprint.bytes_moved -= (passes - 1) * op.dw.bytes();
  const int64_t rows = count_grouped(op.dy, op.expected_rows, op.dw, op.x, op.offsets, footprint);
  footprint.bytes_moved += (passes - 1) * op.dw.bytes();
  footprint.products.m = op.dy.cols;
  footprint.products.n = op.x.cols;
  footprint.products.k = rows;
}

void add_cost(const GatherRows& op, const Target&, Footprint& footprint) {
  footprint.bytes_moved += op.y.bytes();
  count_expected_rows(op.y.rows, op.expected_rows, footprint);
}

void add_cost(const ExpertActivationForward& op, const Target&, Footprint& footprint) {
  count_expected_rows(op.y.rows, op.expected_rows, footprint);
}

void add_cost(const ExpertActivationBackward& op, const Target&, Footprint& footprint) {
  count_expected_rows(op.dy.rows, op.expected_rows, footprint);
}

// RETURNS the text of sizes of a matrix of hidden vectors.
std::string rows_text(const Matrix& x) { return fmt::format("N={} h={} {}", x.rows, x.cols, dtype_name(x.dtype)); }

std::string linear_text(int64_t rows, const Matrix& w, DType compute, const Matrix& pre_activation = {}) {
  return fmt::format("N={} in={} out={} {}{}", rows, w.cols, w.rows, dtype_name(compute),
                     pre_activation.given() ? " gelu_tanh" : "");
}

template <typename Op>
std::string attention_text(const Op& op) {
  std::string text = fmt::format("B={} T={} H={} G={} D={} {}", op.batch, op.sequence_length, op.num_heads,
                                 op.num_kv_heads, op.head_size, dtype_name(op.q.dtype));
  if (op.mask.pattern.one_run()) {
    if (op.mask.window() > 0) text += fmt::format(" window={}", op.mask.window());
  } else {
    text += fmt::format(" {}", attention_pattern_word(op.mask.pattern));
  }
  if (op.softcap > 0) text += fmt::format(" softcap={}", op.softcap);
  if (op.sinks.given()) text += " sinks";
  if (op.mask.document_starts != nullptr) text += " documents";
  if (op.mask.max_documents > 0) text += fmt::format(" in room for {}", op.mask.max_documents);
  return text;
}

std::string heads_text(const Matrix& q, const Matrix& k, int64_t head_size) {
  return fmt::format("N={} H={} G={} D={} {}", q.rows, q.cols / head_size, k.cols / head_size, head_size,
                     dtype_name(q.dtype));
}

template <typename Op>
std::string activation_text(const Op& op, int64_t rows, int64_t cols, DType dtype) {
  std::string text = fmt::format("N={} f={} {}", rows, cols, dtype_name(dtype));
  if (op.code_bits != 0) text += fmt::format(" {} bits", op.code_bits);
  if (op.fp8.given()) text += fmt::format(" to {}", dtype_name(op.fp8.dtype()));
  return text;
}

std::string elements_text(const Matrix& buffer) {
  return fmt::format("elements={} {}", buffer.count(), dtype_name(buffer.dtype));
}

class FirstOperand final : public OperandVisitor {
 public:
  void operand(std::string_view, const Matrix& matrix, Access, const Form& form) override {
    if (text_.empty()) text_ = form.rows == 1 ? elements_text(matrix) : rows_text(matrix);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

template <typename Op>
std::string text_of(const Op& op) {
  FirstOperand first;
  for_each_operand(op, first);
  return first.text();
}

std::string text_of(const EmbeddingForward& op) {
  return fmt::format("{} Vp={}", rows_text(op.x), op.token_table.rows);
}

std::string text_of(const EmbeddingBackward& op) {
  return fmt::format("{} Vp={}", rows_text(op.dx), op.d_token_table.rows);
}

std::string text_of(const LinearForward& op) { return linear_text(op.x.rows, op.w, op.x.dtype, op.pre_activation); }

std::string text_of(const LinearBackwardInput& op) {
  return linear_text(op.dy.rows, op.w, op.dy.dtype, op.pre_activation);
}

std::string text_of(const LinearBackwardWeight& op) { return linear_text(op.dy.rows, op.dw, op.dy.dtype); }

std::string text_of(const QueryKeyForward& op) { return heads_text(op.q, op.k, op.head_size); }

std::string text_of(const QueryKeyBackward& op) { return heads_text(op.dq, op.dk, op.head_size); }

std::string text_of(const AttentionForward& op) { return attention_text(op); }

std::string text_of(const AttentionBackward& op) { return attention_text(op); }

template <typename Op>
std::string part_text(const Op& op) {
  return fmt::format("{} from={} keys={} from={}", attention_text(op.of), op.part.first_query, op.part.keys,
                     op.part.first_key);
}

std::string text_of(const AttentionPartForward& op) { return part_text(op); }

std::string text_of(const AttentionPartBackward& op) { return part_text(op); }

std::string text_of(const ActivationForward& op) {
  return activation_text(op, op.x.rows, activated_cols(op.kind, op.x.cols), op.x.dtype);
}

std::string text_of(const ActivationBackward& op) { return activation_text(op, op.dy.rows, op.dy.cols, op.dy.dtype); }

std::string text_of(const CrossEntropyStatistics& op) {
  return fmt::format("N={} cols={} {}", op.logits.rows, op.logits.cols, dtype_name(op.logits.dtype));
}

std::string text_of(const CrossEntropy& op) {
  return fmt::format("N={} V={} {}", op.logits.rows, op.vocab_size, dtype_name(op.logits.dtype));
}

std::string text_of(const AccumulateLoss& op) { return fmt::format("N={}", op.losses.count()); }

std::string text_of(const PrepareUpdate& op) { return fmt::format("tensors={}", op.partials.count()); }

std::string update_text(const ElementUpdate& op) {
  std::string text = elements_text(op.gradients);
  if (op.weights.given()) text += fmt::format(", {} weights", dtype_name(op.weights.dtype));
  if (!op.master.given()) text += " only";
  return text;
}

std::string text_of(const ClipHeads& op) { return elements_text(op.master); }

#define GPTRAIN_UPDATE_TEXT(Op) \
  std::string text_of(const Op& op) { return update_text(op); }
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_UPDATE_TEXT)
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_UPDATE_TEXT)
#undef GPTRAIN_UPDATE_TEXT

#define GPTRAIN_TENSOR_NORMS_TEXT(Op) \
  std::string text_of(const Op& op) { return update_text(op.update); }
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_TENSOR_NORMS_TEXT)
#undef GPTRAIN_TENSOR_NORMS_TEXT

std::string text_of(const FactoredSums& op) { return fmt::format("elements={}", op.elements); }

std::string text_of(const FactoredMoments& op) { return fmt::format("rows={} cols={}", op.rows.cols, op.cols.cols); }

std::string text_of(const FactoredDirection& op) { return fmt::format("elements={}", op.elements); }

std::string text_of(const Cast& op) {
  return fmt::format("elements={} {} to {}", op.from.count(), dtype_name(op.from.dtype), dtype_name(op.to.dtype));
}

std::string text_of(const WeightedSum& op) {
  return fmt::format("elements={} {} to {}", op.a.count(), dtype_name(op.a.dtype), dtype_name(op.to.dtype));
}

std::string text_of(const Add& op) { return elements_text(op.to); }

std::string text_of(const Amax& op) {
  return fmt::format("N={} cols={} {}", op.x.rows, op.x.cols, dtype_name(op.x.dtype));
}

std::string text_of(const Quantize& op) {
  return fmt::format("N={} cols={} {} to {}", op.x.rows, op.x.cols, dtype_name(op.x.dtype), dtype_name(op.to.dtype()));
}

std::string text_of(const RollAmaxes& op) { return fmt::format("amaxes={} steps={}", op.amaxes.cols, op.history.rows); }

std::string text_of(const ScaledProduct& op) {
  return fmt::format("m={} n={} k={} {} x {} to {}", op.a.rows, op.b.rows, op.a.cols, dtype_name(op.a.dtype),
                     dtype_name(op.b.dtype), dtype_name(op.c.dtype));
}

std::string text_of(const NormalValues& op) {
  return fmt::format("N={} cols={} {}", op.to.rows, op.to.cols, dtype_name(op.to.dtype));
}

std::string text_of(const ProjectionMatrix& op) {
  return fmt::format("N={} k={} {} {}", op.s.rows, op.s.cols, projection_names[op.kind], dtype_name(op.s.dtype));
}

std::string text_of(const SampleRows& op) { return fmt::format("{} of N={}", rows_text(op.y), op.x.rows); }

std::string grouped_text(const Matrix& rows, const Matrix& offsets, int64_t inputs, int64_t outputs) {
  return fmt::format("E={} R={} in={} out={} {}", offsets.cols - 1, rows.rows, inputs, outputs, dtype_name(rows.dtype));
}

std::string text_of(const GroupedLinearForward& op) { return grouped_text(op.x, op.offsets, op.x.cols, op.y.cols); }

std::string text_of(const GroupedLinearBackwardInput& op) {
  return grouped_text(op.dy, op.offsets, op.dx.cols, op.dy.cols);
}

std::string text_of(const GroupedLinearBackwardWeight& op) {
  return grouped_text(op.dy, op.offsets, op.x.cols, op.dy.cols);
}

std::string routing_text(const Matrix& logits, const Matrix& experts) {
  return fmt::format("N={} E={} k={}", logits.rows, logits.cols, experts.cols);
}

std::string text_of(const RouteTokens& op) { return routing_text(op.logits, op.experts); }

std::string text_of(const AddBalance& op) {
  return fmt::format("N={} E={} k={}", op.logits.rows, op.logits.cols, op.top_k);
}

std::string text_of(const RouteTokensBackward& op) { return routing_text(op.logits, op.experts); }

std::string text_of(const JitterRows& op) { return rows_text(op.x); }

std::string text_of(const GateRows& op) { return elements_text(op.weights); }

std::string text_of(const GateRowsBackward& op) { return elements_text(op.weights); }

std::string text_of(const BalanceRouters& op) { return elements_text(op.values); }

std::string text_of(const WriteZeros& op) { return elements_text(op.to); }

std::string text_of(const BiasGradient& op) {
  return fmt::format("N={} out={} {}", op.dy.rows, op.dy.cols, dtype_name(op.dy.dtype));
}

}  // namespace

#define GPTRAIN_FOOTPRINT(Op)                                                                     \
  Footprint footprint(const Op& op, const Target& target) {                                       \
    ByteCounter counter;                                                                          \
    for_each_operand(op, counter);                                                                \
    Footprint result{.bytes_moved = counter.bytes(), .scratch_bytes = scratch_bytes(op, target)}; \
    add_cost(op, target, result);                                                                 \
    return result;                                                                                \
  }                                                                                               \
  std::string shape_text(const Op& op) { return text_of(op); }
GPTRAIN_FOR_EACH_OP(GPTRAIN_FOOTPRINT)
#undef GPTRAIN_FOOTPRINT

}  // namespace gptrain::ops
