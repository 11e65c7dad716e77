// Descriptions of the operands of ops in experts.h.
#include "ops/operands.h"

namespace gptrain::inline ops {

using namespace forms;

namespace {

void visit_rule(const RouterRule& rule, const Matrix& logits, const Matrix& experts, OperandVisitor& visit) {
  visit.require(experts.cols >= 1 && experts.cols <= logits.cols, "a row has more experts than there are");
  visit.require(rule.balanced_rows > 0 && rule.run_ranks > 0 && rule.balanced_rows % rule.run_ranks == 0 &&
                    TokenRows::whole(rule.own_rows()).divides(logits.rows),
                "rows are not whole sequences");
  visit.require(rule.groups > 0 && rule.groups <= most_expert_groups && logits.cols % rule.groups == 0,
                "groups do not divide the experts");
  visit.require(rule.group_top_k > 0 && rule.group_top_k <= rule.groups && experts.cols % rule.group_top_k == 0 &&
                    experts.cols * rule.groups <= rule.group_top_k * logits.cols,
                "the chosen groups have too few experts");
  visit.require(rule.capacity >= 0 && rule.capacity_rows > 0 && logits.rows % rule.capacity_rows == 0,
                "rows are not whole runs with a capacity");
  visit.require(rule.scale > 0, "the weights have no positive factor");
}

// Visits the offsets of E experts. E is not known if `experts` is Form::any.
void visit_offsets(const Matrix& offsets, int64_t experts, OperandVisitor& visit) {
  visit.looks_up("offsets", offsets, vector(DType::i32, experts == Form::any ? Form::any : experts + 1));
  visit.require(offsets.cols >= 2, "there are no experts");
}

void visit_experts_matrix(const Matrix& w, const Matrix& offsets, OperandVisitor& visit) {
  visit_offsets(offsets, Form::any, visit);
  visit.require(offsets.cols < 2 || w.rows % (offsets.cols - 1) == 0, "the matrix is not one for each expert");
}

// RETURNS the form of loads: a row for each run.
Form loads_form(const RouterRule& rule, const Matrix& logits) {
  return exactly(DType::f32, rule.own_rows() > 0 ? logits.rows / rule.own_rows() : Form::any, logits.cols);
}

int64_t rows_of_expert(const Matrix& w, const Matrix& offsets) {
  return offsets.cols < 2 ? 0 : w.rows / (offsets.cols - 1);
}

int64_t expert_activation_cols(ActivationKind kind, const Matrix& narrow) {
  return is_gated(kind) ? 2 * narrow.cols : narrow.cols;
}

}  // namespace

void for_each_operand(const RouteTokens& op, OperandVisitor& visit) {
  const int64_t assignments = op.experts.count();
  visit.reads("logits", op.logits, exactly(DType::f32, Form::any, Form::any));
  visit.writes("experts", op.experts, exactly(DType::i32, op.logits.rows, Form::any));
  visit.writes("slots", op.slots, exactly(DType::i32, op.logits.rows, op.experts.cols));
  visit.writes("rows", op.rows, vector(DType::i32, assignments));
  visit.writes("weights", op.weights, vector(DType::f32, assignments));
  visit.writes("offsets", op.offsets, vector(DType::i32, op.logits.cols + 1));
  visit.looks_up("bias", op.bias, optional(vector(DType::f32, op.logits.cols)));
  visit.looks_up("excess", op.excess, optional(vector(DType::f32, op.logits.cols)));
  visit.operand("statistics", op.statistics, Access::uncounted_write,
                optional(vector(DType::f64, num_routing_sums(op.logits.cols))));
  visit.writes("loads", op.loads, optional(loads_form(op.rule, op.logits)));
  visit_rule(op.rule, op.logits, op.experts, visit);
}

void for_each_operand(const AddBalance& op, OperandVisitor& visit) {
  visit.reads("logits", op.logits, exactly(DType::f32, Form::any, Form::any));
  visit.reads("loads", op.loads, loads_form(op.rule, op.logits));
  visit.operand("statistics", op.statistics, Access::uncounted_write,
                vector(DType::f64, num_routing_sums(op.logits.cols)));
  visit.require(op.top_k > 0, "rows choose no experts");
}

void for_each_operand(const RouteTokensBackward& op, OperandVisitor& visit) {
  visit.reads("logits", op.logits, exactly(DType::f32, Form::any, Form::any));
  visit.reads("experts", op.experts, exactly(DType::i32, op.logits.rows, Form::any));
  visit.reads("slots", op.slots, exactly(DType::i32, op.logits.rows, op.experts.cols));
  visit.looks_up("excess", op.excess, optional(vector(DType::f32, op.logits.cols)));
  visit.reads("loads", op.loads, optional(loads_form(op.rule, op.logits)));
  visit.reads("d_weights", op.d_weights, vector(DType::f32, op.experts.count()));
  visit.writes("d_logits", op.d_logits, like(op.logits));
  visit_rule(op.rule, op.logits, op.experts, visit);
  visit.require(op.state != nullptr, "there is no state");
}

void for_each_operand(const JitterRows& op, OperandVisitor& visit) {
  visit.reads("x", op.x, real());
  visit.writes("y", op.y, exactly(DType::f32, op.x.rows, op.x.cols));
  visit.require(op.dropout.p > 0 && op.dropout.p < 1, "the jitter is not between 0 and 1");
}

void for_each_operand(const GateRows& op, OperandVisitor& visit) {
  visit.reads("logits", op.logits, exactly(DType::f32, Form::any, 1));
  visit.writes("weights", op.weights, vector(DType::f32, op.logits.rows));
  visit.writes("offsets", op.offsets, vector(DType::i32, 2));
}

void for_each_operand(const GateRowsBackward& op, OperandVisitor& visit) {
  visit.reads("weights", op.weights, vector(DType::f32, Form::any));
  visit.reads("d_weights", op.d_weights, like(op.weights));
  visit.writes("d_logits", op.d_logits, exactly(DType::f32, op.weights.cols, 1));
}

void for_each_operand(const BalanceRouters& op, OperandVisitor& visit) {
  visit.updates("values", op.values, vector(DType::f32, op.values.cols));
  visit.reads("routed", op.routed, vector(DType::f64, op.routed.cols));
  visit.require(op.rate >= 0, "the rate is negative");
  visit.require(op.num_segments >= 0, "a negative number of segments");
}

void for_each_operand(const WriteZeros& op, OperandVisitor& visit) { visit.writes("to", op.to, real(1, op.to.cols)); }

void for_each_operand(const GatherRows& op, OperandVisitor& visit) {
  visit.writes("y", op.y, real(Form::any, op.x.cols));
  visit.looks_up("x", op.x, exactly(op.y.dtype, Form::any, Form::any));
  visit.reads("rows", op.rows, vector(DType::i32, op.y.rows));
  visit_offsets(op.offsets, Form::any, visit);
  visit.require(op.x.data != op.y.data || op.x.data == nullptr, "y may not be x");
}

void for_each_operand(const CombineRows& op, OperandVisitor& visit) {
  visit.writes("y", op.y, real(Form::any, op.x.cols));
  visit.reads("x", op.x, exactly(op.y.dtype, Form::any, Form::any));
  visit.reads("slots", op.slots, exactly(DType::i32, op.y.rows, Form::any));
  visit.reads("router", op.router, optional(exactly(DType::f32, op.y.rows, op.y.cols)));
  visit.reads("shared", op.shared, optional(like(op.y)));
  visit.require(op.x.data != op.y.data || op.x.data == nullptr, "y may not be x");
}

void for_each_operand(const ExpertActivationForward& op, OperandVisitor& visit) {
  visit.writes("y", op.y, real());
  visit.reads("x", op.x, exactly(op.y.dtype, op.y.rows, expert_activation_cols(op.kind, op.y)));
  visit.reads("weights", op.weights, vector(DType::f32, op.y.rows));
  visit_offsets(op.offsets, Form::any, visit);
}

void for_each_operand(const ExpertActivationBackward& op, OperandVisitor& visit) {
  visit.reads("dy", op.dy, real());
  visit.reads("x", op.x, exactly(op.dy.dtype, op.dy.rows, expert_activation_cols(op.kind, op.dy)));
  visit.reads("weights", op.weights, vector(DType::f32, op.dy.rows));
  visit.writes("dx", op.dx, like(op.x));
  visit.writes("d_weights", op.d_weights, vector(DType::f32, op.dy.rows));
  visit_offsets(op.offsets, Form::any, visit);
}

void for_each_operand(const GroupedLinearForward& op, OperandVisitor& visit) {
  visit.reads("x", op.x, real());
  visit.reads("w", op.w, exactly(op.x.dtype, Form::any, op.x.cols));
  visit.writes("y", op.y, exactly(op.x.dtype, op.x.rows, rows_of_expert(op.w, op.offsets)));
  visit_experts_matrix(op.w, op.offsets, visit);
}

void for_each_operand(const GroupedLinearBackwardInput& op, OperandVisitor& visit) {
  visit.reads("dy", op.dy, real(Form::any, rows_of_expert(op.w, op.offsets)));
  visit.reads("w", op.w, exactly(op.dy.dtype, Form::any, Form::any));
  visit.writes("dx", op.dx, exactly(op.dy.dtype, op.dy.rows, op.w.cols));
  visit_experts_matrix(op.w, op.offsets, visit);
}

void for_each_operand(const GroupedLinearBackwardWeight& op, OperandVisitor& visit) {
  visit.reads("x", op.x, real());
  visit.reads("dy", op.dy, exactly(op.x.dtype, op.x.rows, rows_of_expert(op.dw, op.offsets)));
  visit.operand("dw", op.dw, summed(op.accumulate), exactly(DType::f32, Form::any, op.x.cols));
  visit_experts_matrix(op.dw, op.offsets, visit);
}

}  // namespace gptrain::ops
