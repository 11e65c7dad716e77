// Operands of the ops that work on flat ranges of parameters and gradients.
#include "ops/operands.h"

namespace gptrain::inline ops {

using namespace forms;

namespace {

// RETURNS the form of gradients. `takes_bf16`: the op accepts bf16.
Form gradient_form(const Matrix& gradients, bool takes_bf16) {
  return vector(takes_bf16 && gradients.dtype == DType::bf16 ? DType::bf16 : DType::f32, gradients.cols);
}

// Visits the operands of an update other than its columns. `updated`: how the op accesses the numbers that it updates,
// which are the masters, or the weights if there are no masters. `rounded`: how it accesses weights if there are
// masters.
void visit_parameters(const ElementUpdate& op, bool takes_bf16, Access updated, Access rounded, OperandVisitor& visit) {
  const int64_t elements = op.gradients.cols;
  visit.reads("gradients", op.gradients, gradient_form(op.gradients, takes_bf16));
  if (op.master.given()) {
    visit.operand("master", op.master, updated, vector(DType::f32, elements));
    visit.operand("weights", op.weights, rounded, optional(real(1, elements)));
  } else {
    visit.operand("weights without masters", op.weights, updated, vector(DType::bf16, elements));
  }
}

void visit_columns(const ElementUpdate& op, size_t first, size_t end, Access access, OperandVisitor& visit) {
  for (size_t i = first; i < end; ++i)
    visit.operand("a column of state", op.columns[i], access, vector(DType::f32, op.gradients.cols));
}

// RETURNS the number of an update's columns, an average of the weights included; norm sums count it, too, but do not
// need it.
template <typename Op>
size_t given_columns(const Op& op) {
  size_t count = Op::num_columns;
  while (count < op.columns.size() && op.columns[count].given()) ++count;
  return count;
}

void visit_tensor_sums(const Matrix& sums, Access access, OperandVisitor& visit) {
  visit.operand("sums", sums, access, exactly(DType::f64, Form::any, 2));
  visit.require(sums.stride == 2, "sums are not pairs that follow one another");
}

void visit_sums_of(const ElementUpdate&, OperandVisitor&) {}
void visit_sums_of(const TensorUpdate& op, OperandVisitor& visit) {
  visit_tensor_sums(op.sums, Access::uncounted_read, visit);
}
void visit_sums_of(const Adafactor& op, OperandVisitor& visit) {
  visit_tensor_sums(op.sums, Access::uncounted_read, visit);
  visit.looks_up("counts", op.counts, vector(DType::f64, op.sums.rows));
}

template <typename Op>
void visit_ranges(const Op& op, Access gradients, OperandVisitor& visit) {
  visit.operand("gradients", op.gradients, gradients, vector(DType::f32, op.gradients.cols));
  visit.require(op.elements >= op.num_ranges && op.elements <= op.gradients.cols, "ranges are empty or overlap");
}

template <typename Op>
void visit_moments(const Op& op, Access access, Access means, OperandVisitor& visit) {
  for (const Matrix* moments : {&op.rows, &op.cols})
    visit.operand("moments", *moments, access, vector(DType::f32, moments->cols));
  visit.operand("means", op.means, means, vector(DType::f64, op.means.cols));
}

}  // namespace

void for_each_operand(const SquaredNorm& op, OperandVisitor& visit) {
  visit.reads("gradients", op.gradients, gradient_form(op.gradients, true));
  visit.require(op.num_segments >= 0, "a negative number of segments");
  visit.writes("partials", op.partials, vector(DType::f64, op.partials.cols));
}

void for_each_operand(const PrepareUpdate& op, OperandVisitor& visit) {
  visit.reads("partials", op.partials, vector(DType::f64, op.partials.cols));
  visit.require(op.clip_norm >= 0, "clip_norm is negative");
  visit.reads("scores", op.scores, optional(vector(DType::f32, op.scores.cols)));
  visit.require(op.scores.given() == (op.score_threshold > 0), "scores are given with a threshold above 0");
}

void for_each_operand(const ClipHeads& op, OperandVisitor& visit) {
  visit.updates("master", op.master, vector(DType::f32, op.master.cols));
  visit.operand("weights", op.weights, Access::uncounted_write, optional(real(1, op.master.cols)));
  visit.reads("largest", op.largest, vector(DType::f32, op.largest.cols));
  visit.require(op.threshold > 0, "the threshold is not positive");
  visit.require(op.num_segments >= 0, "a negative number of segments");
}

#define GPTRAIN_UPDATE_OPERANDS(Op)                                                       \
  void for_each_operand(const Op& op, OperandVisitor& visit) {                            \
    visit_parameters(op, Op::takes_bf16_gradients, Access::update, Access::write, visit); \
    visit_columns(op, 0, Op::num_columns, Access::update, visit);                         \
    visit_sums_of(op, visit);                                                             \
  }
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_UPDATE_OPERANDS)
#undef GPTRAIN_UPDATE_OPERANDS

#define GPTRAIN_BLOCK_UPDATE_OPERANDS(Op)                                                 \
  void for_each_operand(const Op& op, OperandVisitor& visit) {                            \
    const int64_t elements = op.gradients.cols;                                           \
    visit_parameters(op, Op::takes_bf16_gradients, Access::update, Access::write, visit); \
    visit.require(elements % state_block == 0, "the range does not end with a block");    \
    for (size_t i = 0; i < op.scales.size(); ++i) {                                       \
      visit.updates("codes", op.columns[i], vector(DType::u8, elements));                 \
      visit.updates("scales", op.scales[i], vector(DType::f32, elements / state_block));  \
    }                                                                                     \
    visit_columns(op, op.scales.size(), Op::num_columns, Access::update, visit);          \
  }
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_BLOCK_UPDATE_OPERANDS)
#undef GPTRAIN_BLOCK_UPDATE_OPERANDS

#define GPTRAIN_TENSOR_NORMS_OPERANDS(Op)                                            \
  void for_each_operand(const Op& op, OperandVisitor& visit) {                       \
    visit_parameters(op.update, false, Access::read, Access::uncounted_read, visit); \
    visit_columns(op.update, 0, given_columns(op.update), Access::read, visit);      \
    visit_tensor_sums(op.sums, Access::write, visit);                                \
  }
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_TENSOR_NORMS_OPERANDS)
#undef GPTRAIN_TENSOR_NORMS_OPERANDS

void for_each_operand(const FactoredSums& op, OperandVisitor& visit) {
  visit_ranges(op, Access::uncounted_read, visit);
  visit.writes("sums", op.sums, vector(DType::f64, op.sums.cols));
}

void for_each_operand(const FactoredMoments& op, OperandVisitor& visit) {
  visit.reads("sums", op.sums, vector(DType::f64, op.sums.cols));
  visit_moments(op, Access::update, Access::write, visit);
  visit.require(op.means.cols == op.num_matrices, "a mean for each matrix");
  visit.require(op.beta2_decay < 0 && op.eps > 0, "beta2_decay is not negative or eps not positive");
}

void for_each_operand(const FactoredDirection& op, OperandVisitor& visit) {
  visit_ranges(op, Access::uncounted_write, visit);
  visit_moments(op, Access::read, Access::read, visit);
}

void for_each_operand(const KeepGradients& op, OperandVisitor& visit) {
  visit.reads("gradients", op.gradients, vector(DType::f32, op.gradients.cols));
  visit.require(op.num_segments >= 0, "a negative number of segments");
  visit.operand("kept", op.sums, summed(op.accumulate), vector(DType::bf16, op.gradients.cols));
}

void for_each_operand(const SelectLargest& op, OperandVisitor& visit) {
  visit.reads("x", op.x, vector(DType::f32, op.x.cols));
  visit.writes("indices", op.indices, vector(DType::i32, op.indices.cols));
  visit.writes("values", op.values, vector(DType::f32, op.indices.cols));
  visit.require(op.indices.cols <= op.x.cols, "more elements are selected than there are");
}

void for_each_operand(const AddAt& op, OperandVisitor& visit) {
  visit.reads("values", op.values, vector(DType::f32, op.indices.cols));
  visit.reads("indices", op.indices, vector(DType::i32, op.indices.cols));
  visit.operand("to", op.to, Access::uncounted_write, vector(DType::f32, op.to.cols));
}

void for_each_operand(const TakeAt& op, OperandVisitor& visit) {
  visit.writes("values", op.values, vector(DType::f32, op.indices.cols));
  visit.reads("indices", op.indices, vector(DType::i32, op.indices.cols));
  visit.looks_up("from", op.from, vector(DType::f32, op.from.cols));
}

void for_each_operand(const CountSketch& op, OperandVisitor& visit) {
  visit.reads("x", op.x, vector(DType::f32, op.x.cols));
  visit.writes("table", op.table, exactly(DType::f32, op.table.rows, op.table.cols));
  visit.require(op.table.rows <= most_sketch_rows, "more rows than a sketch has");
}

void for_each_operand(const EstimateSketch& op, OperandVisitor& visit) {
  visit.writes("estimates", op.estimates, vector(DType::f32, op.estimates.cols));
  visit.reads("table", op.table, exactly(DType::f32, op.table.rows, op.table.cols));
  visit.require(op.table.rows <= most_sketch_rows, "more rows than a sketch has");
}

void for_each_operand(const KeepResidual& op, OperandVisitor& visit) {
  visit.reads("errors", op.errors, vector(DType::f32, op.errors.cols));
  visit.writes("kept", op.residual, vector(DType::f32, op.errors.cols));
}

}  // namespace gptrain::ops
