// The linears of a block with FP8 products (arXiv 2209.05433): inputs and weights in E4M3, gradients of outputs in
// E5M2, each tensor under a scale that it has itself asked for (current scaling), so that there is no state.
//
// Every product wants factors whose rows run along its depth, so each tensor is stored as it is, for the product that
// comes at once, and transposed, for the gradient of the weight: that copy is what the records keep, in the place of
// the 16-bit input of the linear and the 16-bit gradient of its output.
#include "base/fp8.h"
#include "model/units.h"

namespace gptrain {
namespace {

constexpr DType forward_dtype = DType::f8e4m3;
constexpr DType gradient_dtype = DType::f8e5m2;

}  // namespace

bool Units::has_fp8_linears() const { return is_fp8(shape_.precision.linears); }

void Units::declare_fp8_records() {
  linear_of_tensor_.assign(tensor_shapes_.size(), -1);
  for (const BlockTensors& t : blocks_) {
    int8_t linear = 0;
    for (const int64_t w : {t.qkv, t.out, t.ffn_in, t.ffn_out}) linear_of_tensor_[static_cast<size_t>(w)] = linear++;
  }
  const BlockTensors& t = blocks_.front();
  const int64_t n = shape_.rows();
  for (const int64_t w : {t.qkv, t.out, t.ffn_in, t.ffn_out}) {
    const int64_t out = tensor_shapes_[static_cast<size_t>(w)][0];
    const int64_t in = tensor_shapes_[static_cast<size_t>(w)][1];
    BlockFields& f = block_fields_;
    f.fp8[static_cast<size_t>(linear_of_tensor_[static_cast<size_t>(w)])] = {
        .x = f.saved.add(forward_dtype, in, n),
        .x_scale = f.saved.add(DType::f32, 1, 1),
        .dy = f.gradients.add(gradient_dtype, out, n),
        .dy_scale = f.gradients.add(DType::f32, 1, 1),
        .w = f.fp8_weights.add(forward_dtype, out, in),
        .w_transposed = f.fp8_weights.add(forward_dtype, in, out),
        .w_scale = f.fp8_weights.add(DType::f32, 1, 1),
        .row_parallel = w == t.out || w == t.ffn_out};
  }
}

const Units::Fp8Linear& Units::fp8_linear(int64_t w) const {
  return block_fields_.fp8.at(static_cast<size_t>(linear_of_tensor_.at(static_cast<size_t>(w))));
}

Matrix Units::room_for_amax(WorkspaceFrame& frame) const {
  return has_fp8_linears() ? frame.take(DType::f32, 1, amax_parts) : Matrix{};
}

// Only where the gradient of the residual stream is that of a branch, too, and so some linear's.
Matrix Units::carrier_amax(std::byte* carrier) const {
  return has_fp8_linears() && !branch_gradient_differs() ? Matrix(carrier + stream_bytes(), DType::f32, 1, amax_parts)
                                                         : Matrix{};
}

Units::Factor Units::linear_input(const UnitCall& call, WorkspaceFrame& frame, RecordLayout::Field field, int64_t rows,
                                  int64_t cols) const {
  if (!has_fp8_linears()) return {saved(call, field)};
  return {frame.take(shape_.precision.compute, rows, cols), room_for_amax(frame)};
}

Units::Factor Units::linear_gradient(const UnitCall& call, WorkspaceFrame& frame, RecordLayout::Field field,
                                     int64_t cols) const {
  if (!has_fp8_linears()) return {kept(call, field)};
  return {frame.take(shape_.precision.compute, shape_.rows(), cols), room_for_amax(frame)};
}

int64_t Units::true_terms(int64_t w) const {
  return shape_.rows() * model_rows(w) * tensor_shapes_[static_cast<size_t>(w)][1];
}

Matrix Units::whole_amax(const Factor& factor, bool is_part, WorkspaceFrame& frame) {
  Matrix amax = factor.amax;
  if (!amax.given()) {
    amax = room_for_amax(frame);
    backend_.run(Amax{.x = factor.x, .amax = amax});
  }
  if (is_part && is_split())
    tensor_.lane->wait(tensor_.lane->all_reduce(tensor_.group, amax.data, amax.count(), amax.dtype, ReduceOp::max));
  return amax;
}

void Units::prepare_weights(int64_t unit, const UnitCall& call) {
  if (!has_fp8_linears() || !call.prepare_weights) return;
  const BlockTensors& t = block(unit);
  for (const int64_t w : {t.qkv, t.out, t.ffn_in, t.ffn_out}) {
    const Fp8Linear& f = fp8_linear(w);
    WorkspaceFrame frame(*call.workspace);
    backend_.run(Quantize{.x = weight(call, w),
                          .amax = whole_amax({weight(call, w)}, true, frame),
                          .rows = fp8_weight(call, f.w),
                          .transposed = fp8_weight(call, f.w_transposed),
                          .inverse_scale = fp8_weight(call, f.w_scale),
                          .d_bias = {},
                          .accumulate = false});
  }
}

void Units::save_fp8_input(const UnitCall& call, const Factor& x, int64_t w, const Matrix& rows) {
  const Fp8Linear& f = fp8_linear(w);
  WorkspaceFrame frame(*call.workspace);
  // Row-parallel linears have their columns of x; column-parallel ones all of them, and maybe only the amax of some
  // rows.
  const Matrix amax = whole_amax(x, f.row_parallel || tensor_.sequence, frame);
  const Matrix whole = f.row_parallel ? x.x : wait(begin_gather(x.x, room_for_all_rows(frame, x.x)));
  backend_.run(Quantize{.x = whole,
                        .amax = amax,
                        .rows = rows,
                        .transposed = saved(call, f.x),
                        .inverse_scale = saved(call, f.x_scale),
                        .d_bias = {},
                        .accumulate = false});
}

void Units::fp8_forward(const UnitCall& call, const Factor& x, int64_t w, int64_t bias, const Matrix& y) {
  const Fp8Linear& f = fp8_linear(w);
  WorkspaceFrame frame(*call.workspace);
  const Matrix rows = frame.take(forward_dtype, shape_.rows(), x.x.cols);
  save_fp8_input(call, x, w, rows);
  backend_.run(ScaledProduct{.a = rows,
                             .b = fp8_weight(call, f.w),
                             .a_scale = saved(call, f.x_scale),
                             .b_scale = fp8_weight(call, f.w_scale),
                             .bias = weight(call, bias),
                             .c = y,
                             .accumulate = false,
                             .true_terms = true_terms(w)});
}

void Units::fp8_backward_input(const UnitCall& call, const Factor& dy, int64_t w, int64_t bias, const Matrix& dx) {
  const Fp8Linear& f = fp8_linear(w);
  WorkspaceFrame frame(*call.workspace);
  const Matrix rows = frame.take(gradient_dtype, dy.x.rows, dy.x.cols);
  {
    WorkspaceFrame inner(*call.workspace);
    backend_.run(Quantize{.x = dy.x,
                          .amax = whole_amax(dy, !f.row_parallel || tensor_.sequence, inner),
                          .rows = rows,
                          .transposed = kept(call, f.dy),
                          .inverse_scale = kept(call, f.dy_scale),
                          .d_bias = gradient(call, bias),
                          .accumulate = call.accumulate});
  }
  backend_.run(ScaledProduct{.a = rows,
                             .b = fp8_weight(call, f.w_transposed),
                             .a_scale = kept(call, f.dy_scale),
                             .b_scale = fp8_weight(call, f.w_scale),
                             .bias = {},
                             .c = dx,
                             .accumulate = false,
                             .true_terms = true_terms(w)});
}

void Units::fp8_backward_weight(const UnitCall& call, int64_t w) {
  const Fp8Linear& f = fp8_linear(w);
  backend_.run(ScaledProduct{.a = kept(call, f.dy),
                             .b = saved(call, f.x),
                             .a_scale = kept(call, f.dy_scale),
                             .b_scale = saved(call, f.x_scale),
                             .bias = {},
                             .c = gradient(call, w),
                             .accumulate = call.accumulate,
                             .true_terms = true_terms(w)});
}

}  // namespace gptrain
