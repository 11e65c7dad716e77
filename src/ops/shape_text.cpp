#include "ops/shape_text.h"

#include <fmt/format.h>

#include "base/dtype.h"

namespace gptrain {
namespace {

// [rows, cols] of a matrix of hidden vectors.
std::string rows_text(const Matrix& x) { return fmt::format("N={} h={} {}", x.rows, x.cols, dtype_name(x.dtype)); }

std::string linear_text(int64_t rows, const Matrix& w, DType compute, const Matrix& pre_activation = {}) {
  return fmt::format("N={} in={} out={} {}{}", rows, w.cols, w.rows, dtype_name(compute),
                     pre_activation.given() ? " gelu_tanh" : "");
}

template <typename Op>
std::string attention_text(const Op& op) {
  std::string text = fmt::format("B={} T={} H={} G={} D={} {}", op.batch, op.sequence_length, op.num_heads,
                                 op.num_kv_heads, op.head_size, dtype_name(op.q.dtype));
  if (op.mask.window > 0) text += fmt::format(" window={}", op.mask.window);
  if (op.mask.document_starts != nullptr) text += " documents";
  if (op.mask.max_documents > 0) text += fmt::format(" in room for {}", op.mask.max_documents);
  return text;
}

std::string heads_text(const Matrix& q, const Matrix& k, int64_t head_size) {
  return fmt::format("N={} H={} G={} D={} {}", q.rows, q.cols / head_size, k.cols / head_size, head_size,
                     dtype_name(q.dtype));
}

const Matrix& activated(const ActivationForward& op) { return op.y; }
const Matrix& activated(const ActivationBackward& op) { return op.dy; }

template <typename Op>
std::string activation_text(const Op& op) {
  const Matrix& narrow = activated(op);
  return fmt::format("N={} f={} {}{}", narrow.rows, narrow.cols, dtype_name(narrow.dtype),
                     op.code_bits != 0 ? fmt::format(" {} bits", op.code_bits) : "");
}

std::string elements_text(const Matrix& buffer) {
  return fmt::format("elements={} {}", buffer.count(), dtype_name(buffer.dtype));
}

}  // namespace

std::string shape_text(const EmbeddingForward& op) {
  return fmt::format("{} Vp={}", rows_text(op.x), op.token_table.rows);
}

std::string shape_text(const EmbeddingBackward& op) {
  return fmt::format("{} Vp={}", rows_text(op.dx), op.d_token_table.rows);
}

std::string shape_text(const NormForward& op) { return rows_text(op.y); }

std::string shape_text(const NormBackward& op) { return rows_text(op.dy); }

std::string shape_text(const ResidualAdd& op) { return rows_text(op.branch); }

std::string shape_text(const BranchBackward& op) { return rows_text(op.d_branch); }

std::string shape_text(const LinearForward& op) { return linear_text(op.x.rows, op.w, op.x.dtype, op.pre_activation); }

std::string shape_text(const LinearBackwardInput& op) {
  return linear_text(op.dy.rows, op.w, op.dy.dtype, op.pre_activation);
}

std::string shape_text(const LinearBackwardWeight& op) { return linear_text(op.dy.rows, op.dw, op.dy.dtype); }

std::string shape_text(const QueryKeyForward& op) { return heads_text(op.q, op.k, op.head_size); }

std::string shape_text(const QueryKeyBackward& op) { return heads_text(op.dq, op.dk, op.head_size); }

std::string shape_text(const AttentionForward& op) { return attention_text(op); }

std::string shape_text(const AttentionBackward& op) { return attention_text(op); }

std::string shape_text(const ActivationForward& op) { return activation_text(op); }

std::string shape_text(const ActivationBackward& op) { return activation_text(op); }

std::string shape_text(const CrossEntropyStatistics& op) {
  return fmt::format("N={} cols={} {}", op.logits.rows, op.logits.cols, dtype_name(op.logits.dtype));
}

std::string shape_text(const CrossEntropy& op) {
  return fmt::format("N={} V={} {}", op.logits.rows, op.vocab_size, dtype_name(op.logits.dtype));
}

std::string shape_text(const AccumulateLoss& op) { return fmt::format("N={}", op.losses.count()); }

std::string shape_text(const SquaredNorm& op) { return elements_text(op.gradients); }

std::string shape_text(const PrepareUpdate& op) { return fmt::format("tensors={}", op.partials.count()); }

std::string update_text(const ElementUpdate& op) {
  std::string text = elements_text(op.gradients);
  if (op.weights.given()) text += fmt::format(", {} weights", dtype_name(op.weights.dtype));
  if (!op.master.given()) text += " only";
  return text;
}

#define GPTRAIN_UPDATE_TEXT(Op) \
  std::string shape_text(const Op& op) { return update_text(op); }
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_UPDATE_TEXT)
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_UPDATE_TEXT)
#undef GPTRAIN_UPDATE_TEXT

#define GPTRAIN_TENSOR_NORMS_TEXT(Op) \
  std::string shape_text(const Op& op) { return update_text(op.update); }
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_TENSOR_NORMS_TEXT)
#undef GPTRAIN_TENSOR_NORMS_TEXT

std::string shape_text(const FactoredSums& op) { return fmt::format("elements={}", op.elements); }

std::string shape_text(const FactoredMoments& op) {
  return fmt::format("rows={} cols={}", op.rows.cols, op.cols.cols);
}

std::string shape_text(const FactoredDirection& op) { return fmt::format("elements={}", op.elements); }

std::string shape_text(const Cast& op) {
  return fmt::format("elements={} {} to {}", op.from.count(), dtype_name(op.from.dtype), dtype_name(op.to.dtype));
}

std::string shape_text(const WeightedSum& op) {
  return fmt::format("elements={} {} to {}", op.a.count(), dtype_name(op.a.dtype), dtype_name(op.to.dtype));
}

std::string shape_text(const Add& op) { return elements_text(op.to); }

std::string shape_text(const AddSums& op) { return elements_text(op.gradient); }

std::string shape_text(const KeepGradients& op) { return elements_text(op.gradients); }

std::string shape_text(const Amax& op) {
  return fmt::format("N={} cols={} {}", op.x.rows, op.x.cols, dtype_name(op.x.dtype));
}

std::string shape_text(const Quantize& op) {
  const Matrix& copy = op.rows.given() ? op.rows : op.transposed;
  return fmt::format("N={} cols={} {} to {}", op.x.rows, op.x.cols, dtype_name(op.x.dtype), dtype_name(copy.dtype));
}

std::string shape_text(const ScaledProduct& op) {
  return fmt::format("m={} n={} k={} {} x {} to {}", op.a.rows, op.b.rows, op.a.cols, dtype_name(op.a.dtype),
                     dtype_name(op.b.dtype), dtype_name(op.c.dtype));
}

std::string shape_text(const EncodeBlocks& op) { return rows_text(op.x); }

std::string shape_text(const DecodeBlocks& op) { return rows_text(op.x); }

std::string shape_text(const ProjectionMatrix& op) {
  return fmt::format("N={} k={} {} {}", op.s.rows, op.s.cols, projection_names[static_cast<size_t>(op.kind)],
                     dtype_name(op.s.dtype));
}

std::string shape_text(const SampleRows& op) { return fmt::format("{} of N={}", rows_text(op.y), op.x.rows); }

std::string shape_text(const BiasGradient& op) {
  return fmt::format("N={} out={} {}", op.dy.rows, op.dy.cols, dtype_name(op.dy.dtype));
}

}  // namespace gptrain
