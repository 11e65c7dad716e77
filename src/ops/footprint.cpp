#include "ops/footprint.h"

#include <algorithm>
#include <initializer_list>

#include "ops/cpu/scratch.h"
#include "ops/gpu_scratch.h"

namespace gptrain {
namespace {

int64_t moved(std::initializer_list<Matrix> operands) {
  int64_t bytes = 0;
  for (const Matrix& operand : operands) bytes += operand.bytes();
  return bytes;
}

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

// One [rows, in] x [in, out] product, whichever of the three it is.
template <typename Op>
Footprint linear_footprint(const Op& op, const Matrix& w, int64_t rows, const Target& target) {
  return {.model_flops = product_flops(rows, op.true_out >= 0 ? op.true_out : w.rows, w.cols),
          .executed_flops = product_flops(rows, w.rows, w.cols),
          .bytes_moved = 0,
          .scratch_bytes = scratch_bytes(op, target)};
}

// Twice the (query, key) pairs of a sequence that attend: the square, by the field's custom its half when causal, the
// sum over queries of min(query + 1, window) with a window that is shorter.
Flops twice_attended_pairs(const AttentionMask& mask, int64_t tokens) {
  const auto t = static_cast<Flops>(tokens), window = static_cast<Flops>(mask.window);
  if (!mask.causal) return 2 * t * t;
  return mask.window > 0 && mask.window < tokens ? window * (2 * t - window + 1) : t * t;
}

// Products of attention, each over the (query, key) pairs of one head: `model` counts those that attend, `executed`
// whole tiles. What documents leave out is known to the device only, and counts.
template <typename Op>
void count_attention(const Op& op, int64_t products_in_model, int64_t products_executed, Footprint& footprint) {
  footprint.products.dtype = op.q.dtype;
  footprint.products.count = op.batch * op.num_heads;
  footprint.products.m = footprint.products.n = op.sequence_length;
  footprint.products.k = op.head_size;
  const int64_t t = op.sequence_length;
  const auto heads = static_cast<Flops>(op.batch * op.num_heads);
  footprint.model_flops = twice_attended_pairs(op.mask, t) * static_cast<Flops>(op.head_size) * heads *
                          static_cast<Flops>(products_in_model);
  int64_t tiles = 0;
  for (int64_t query = 0; query < t; query += attention_query_tile) {
    const int64_t end = op.mask.causal ? std::min(query + attention_query_tile, t) : t;
    const int64_t first = op.mask.window > 0 ? std::max<int64_t>(query - op.mask.window + 1, 0) : 0;
    tiles += (end + attention_key_tile - 1) / attention_key_tile - first / attention_key_tile;
  }
  footprint.executed_flops = product_flops(attention_query_tile, attention_key_tile, op.head_size) *
                             static_cast<Flops>(tiles) * heads * static_cast<Flops>(products_executed);
}

}  // namespace

Footprint footprint(const EmbeddingForward& op, const Target&) {
  return {.bytes_moved = 2 * moved({op.x}) + op.x.rows * static_cast<int64_t>(sizeof(int32_t))};
}

Footprint footprint(const EmbeddingBackward& op, const Target& target) {
  int64_t bytes = moved({op.dx, op.dx});
  if (!op.accumulate_token) bytes += moved({op.d_token_table});
  if (!op.accumulate_position) bytes += moved({op.d_position_table});
  return {.bytes_moved = bytes, .scratch_bytes = scratch_bytes(op, target)};
}

Footprint footprint(const NormForward& op, const Target&) {
  return {.bytes_moved = moved({op.x, op.branch, op.x_out, op.gamma, op.beta, op.y, op.mean, op.rstd, op.amax})};
}

Footprint footprint(const NormBackward& op, const Target& target) {
  return {.bytes_moved = moved(
              {op.dy, op.x, op.gamma, op.mean, op.rstd, op.dx_residual, op.dx, op.gamma_sums, op.beta_sums, op.amax}),
          .scratch_bytes = scratch_bytes(op, target)};
}

Footprint footprint(const ResidualAdd& op, const Target&) {
  return {.bytes_moved = moved({op.x, op.branch, op.x_out})};
}

Footprint footprint(const BranchBackward& op, const Target&) {
  return {.bytes_moved = moved({op.dx, op.d_branch, op.amax})};
}

Footprint footprint(const LinearForward& op, const Target& target) {
  Footprint result = linear_footprint(op, op.w, op.x.rows, target);
  result.bytes_moved = moved({op.x, op.w, op.bias, op.y, op.pre_activation});
  result.products = product_shape(op.x.dtype, op.x.rows, op.w.rows, op.w.cols);
  return result;
}

Footprint footprint(const LinearBackwardInput& op, const Target& target) {
  Footprint result = linear_footprint(op, op.w, op.dy.rows, target);
  result.bytes_moved = moved({op.dy, op.w, op.dx, op.pre_activation});
  result.products = product_shape(op.dy.dtype, op.dy.rows, op.w.cols, op.w.rows);
  return result;
}

Footprint footprint(const LinearBackwardWeight& op, const Target& target) {
  Footprint result = linear_footprint(op, op.dw, op.dy.rows, target);
  if (op.true_rows >= 0)
    result.model_flops = product_flops(op.true_rows, op.true_out >= 0 ? op.true_out : op.dw.rows, op.dw.cols);
  result.bytes_moved = moved({op.x, op.dy, op.dw, op.d_bias});
  if (op.accumulate) result.bytes_moved += moved({op.dw, op.d_bias});
  result.products = product_shape(op.dy.dtype, op.dw.rows, op.dw.cols, op.dy.rows);
  return result;
}

Footprint footprint(const QueryKeyForward& op, const Target&) {
  return {.bytes_moved = moved({op.q, op.k, op.q_out, op.k_out, op.rstd})};
}

Footprint footprint(const QueryKeyBackward& op, const Target& target) {
  return {.bytes_moved = moved({op.q, op.k, op.rstd, op.dq, op.dq, op.dk, op.dk}),
          .scratch_bytes = scratch_bytes(op, target)};
}

Footprint footprint(const AttentionForward& op, const Target& target) {
  Footprint result{.bytes_moved = moved({op.q, op.k, op.v, op.o, op.lse}), .scratch_bytes = scratch_bytes(op, target)};
  count_attention(op, 2, 2, result);  // q k^T, p v
  result.products.kind = ProductShape::Kind::attention_forward;
  return result;
}

Footprint footprint(const AttentionBackward& op, const Target& target) {
  Footprint result{.bytes_moved = moved({op.q, op.k, op.v, op.o, op.lse, op.d_o, op.dq, op.dk, op.dv}),
                   .scratch_bytes = scratch_bytes(op, target)};
  // dv, dp, dq, dk; executed: q k^T once more. The own GPU kernel, which adds nothing up with atomics, has the scores
  // and dp once for dk and dv and once for dq.
  const bool twice = !on_cpu(target) && !fused_attention_shape(op);
  count_attention(op, 4, twice ? 7 : 5, result);
  result.products.kind = ProductShape::Kind::attention_backward;
  return result;
}

Footprint footprint(const ActivationForward& op, const Target&) {
  return {.bytes_moved = moved({op.x, op.bias, op.y, op.amax, op.codes})};
}

Footprint footprint(const ActivationBackward& op, const Target&) {
  return {.bytes_moved = moved({op.x, op.bias, op.dy, op.dx, op.amax, op.codes})};
}

Footprint footprint(const CrossEntropyStatistics& op, const Target&) {
  return {.bytes_moved = moved({op.logits, op.statistics})};
}

Footprint footprint(const CrossEntropy& op, const Target&) {
  return {.bytes_moved = moved({op.logits, op.d_logits, op.losses, op.statistics})};
}

Footprint footprint(const AccumulateLoss& op, const Target&) { return {.bytes_moved = moved({op.losses})}; }

Footprint footprint(const SquaredNorm& op, const Target& target) {
  return {.bytes_moved = moved({op.gradients, op.partials}), .scratch_bytes = scratch_bytes(op, target)};
}

Footprint footprint(const PrepareUpdate& op, const Target&) { return {.bytes_moved = moved({op.partials})}; }

// Columns of state and weights are read and written; what receives rounded masters is written only.
Footprint update_footprint(const ElementUpdate& op) {
  const Matrix& read = op.master.given() ? op.master : op.weights;
  int64_t bytes = moved({op.gradients, read, op.master, op.weights});
  for (const Matrix& column : op.columns) bytes += moved({column, column});
  return {.bytes_moved = bytes};
}

#define GPTRAIN_UPDATE_FOOTPRINT(Op) \
  Footprint footprint(const Op& op, const Target&) { return update_footprint(op); }
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_UPDATE_FOOTPRINT)
#undef GPTRAIN_UPDATE_FOOTPRINT

#define GPTRAIN_BLOCK_UPDATE_FOOTPRINT(Op)                                                   \
  Footprint footprint(const Op& op, const Target&) {                                         \
    Footprint footprint = update_footprint(op);                                              \
    for (const Matrix& scales : op.scales) footprint.bytes_moved += moved({scales, scales}); \
    return footprint;                                                                        \
  }
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_BLOCK_UPDATE_FOOTPRINT)
#undef GPTRAIN_BLOCK_UPDATE_FOOTPRINT

// What the update reads.
int64_t measured_bytes(const ElementUpdate& op) {
  int64_t bytes = moved({op.gradients, op.master.given() ? op.master : op.weights});
  for (const Matrix& column : op.columns) bytes += moved({column});
  return bytes;
}

#define GPTRAIN_TENSOR_NORMS_FOOTPRINT(Op)                                                                            \
  Footprint footprint(const Op& op, const Target& target) {                                                           \
    return {.bytes_moved = measured_bytes(op.update) + moved({op.sums}), .scratch_bytes = scratch_bytes(op, target)}; \
  }
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_TENSOR_NORMS_FOOTPRINT)
#undef GPTRAIN_TENSOR_NORMS_FOOTPRINT

// Rows and columns are summed one after the other.
Footprint footprint(const FactoredSums& op, const Target&) {
  return {.bytes_moved = 2 * op.elements * dtype_bytes(DType::f32) + moved({op.sums})};
}

Footprint footprint(const FactoredMoments& op, const Target&) {
  return {.bytes_moved = moved({op.sums, op.rows, op.rows, op.cols, op.cols, op.means})};
}

Footprint footprint(const FactoredDirection& op, const Target&) {
  return {.bytes_moved = 2 * op.elements * dtype_bytes(DType::f32) + moved({op.rows, op.cols, op.means})};
}

Footprint footprint(const Cast& op, const Target&) { return {.bytes_moved = moved({op.from, op.to})}; }

Footprint footprint(const WeightedSum& op, const Target&) {
  return {.bytes_moved = moved({op.a, op.b, op.to, op.squared_norm})};
}

Footprint footprint(const Add& op, const Target&) { return {.bytes_moved = moved({op.from, op.to, op.to})}; }

Footprint footprint(const AddSums& op, const Target&) {
  return {.bytes_moved = moved({op.sums, op.gradient}) + (op.accumulate ? moved({op.gradient}) : 0)};
}

Footprint footprint(const KeepGradients& op, const Target&) {
  return {.bytes_moved = moved({op.gradients, op.kept}) + (op.accumulate ? moved({op.kept}) : 0)};
}

Footprint footprint(const Amax& op, const Target&) { return {.bytes_moved = moved({op.x, op.amax})}; }

Footprint footprint(const Quantize& op, const Target& target) {
  return {.bytes_moved = moved({op.x, op.amax, op.rows, op.transposed, op.inverse_scale, op.column_sums}),
          .scratch_bytes = scratch_bytes(op, target)};
}

Footprint footprint(const ScaledProduct& op, const Target& target) {
  const Flops flops = product_flops(op.a.rows, op.b.rows, op.a.cols);
  return {.model_flops = op.true_terms >= 0 ? Flops{2} * static_cast<Flops>(op.true_terms) : flops,
          .executed_flops = flops,
          .bytes_moved = moved({op.a, op.b, op.bias, op.c}) + (op.accumulate ? moved({op.c}) : 0),
          .scratch_bytes = scratch_bytes(op, target),
          .products = product_shape(op.a.dtype, op.a.rows, op.b.rows, op.a.cols)};
}

Footprint footprint(const EncodeBlocks& op, const Target&) { return {.bytes_moved = moved({op.x, op.codes, op.scales})}; }

Footprint footprint(const DecodeBlocks& op, const Target&) { return {.bytes_moved = moved({op.x, op.codes, op.scales})}; }

Footprint footprint(const ProjectionMatrix& op, const Target&) { return {.bytes_moved = moved({op.s})}; }

Footprint footprint(const SampleRows& op, const Target&) { return {.bytes_moved = moved({op.y, op.y})}; }

Footprint footprint(const BiasGradient& op, const Target& target) {
  return {.bytes_moved = moved({op.dy, op.d_bias}) + (op.accumulate ? moved({op.d_bias}) : 0),
          .scratch_bytes = scratch_bytes(op, target)};
}

}  // namespace gptrain
