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
        .w_scale = f.fp8_weights.add(DType::f32, 1, 1)};
  }
}

const Units::Fp8Linear& Units::fp8_linear(int64_t w) const {
  return block_fields_.fp8.at(static_cast<size_t>(linear_of_tensor_.at(static_cast<size_t>(w))));
}

Matrix Units::linear_input(const UnitCall& call, WorkspaceFrame& frame, RecordLayout::Field field, int64_t cols) const {
  return has_fp8_linears() ? frame.take(shape_.precision.compute, shape_.rows(), cols) : saved(call, field);
}

Matrix Units::linear_gradient(const UnitCall& call, WorkspaceFrame& frame, RecordLayout::Field field,
                              int64_t cols) const {
  return has_fp8_linears() ? frame.take(shape_.precision.compute, shape_.rows(), cols) : kept(call, field);
}

void Units::prepare_weights(int64_t unit, const UnitCall& call) {
  if (!has_fp8_linears() || !call.prepare_weights) return;
  const BlockTensors& t = block(unit);
  for (const int64_t w : {t.qkv, t.out, t.ffn_in, t.ffn_out}) {
    const Fp8Linear& f = fp8_linear(w);
    backend_.run(Quantize{.x = weight(call, w),
                          .rows = fp8_weight(call, f.w),
                          .transposed = fp8_weight(call, f.w_transposed),
                          .inverse_scale = fp8_weight(call, f.w_scale),
                          .d_bias = {},
                          .accumulate = false});
  }
}

void Units::save_fp8_input(const UnitCall& call, const Matrix& x, int64_t w, const Matrix& rows) {
  const Fp8Linear& f = fp8_linear(w);
  backend_.run(Quantize{.x = x,
                        .rows = rows,
                        .transposed = saved(call, f.x),
                        .inverse_scale = saved(call, f.x_scale),
                        .d_bias = {},
                        .accumulate = false});
}

void Units::fp8_forward(const UnitCall& call, const Matrix& x, int64_t w, int64_t bias, const Matrix& y) {
  const Fp8Linear& f = fp8_linear(w);
  WorkspaceFrame frame(*call.workspace);
  const Matrix rows = frame.take(forward_dtype, x.rows, x.cols);
  save_fp8_input(call, x, w, rows);
  backend_.run(ScaledProduct{.a = rows,
                             .b = fp8_weight(call, f.w),
                             .a_scale = saved(call, f.x_scale),
                             .b_scale = fp8_weight(call, f.w_scale),
                             .bias = weight(call, bias),
                             .c = y,
                             .accumulate = false});
}

void Units::fp8_backward_input(const UnitCall& call, const Matrix& dy, int64_t w, int64_t bias, const Matrix& dx) {
  const Fp8Linear& f = fp8_linear(w);
  WorkspaceFrame frame(*call.workspace);
  const Matrix rows = frame.take(gradient_dtype, dy.rows, dy.cols);
  backend_.run(Quantize{.x = dy,
                        .rows = rows,
                        .transposed = kept(call, f.dy),
                        .inverse_scale = kept(call, f.dy_scale),
                        .d_bias = gradient(call, bias),
                        .accumulate = call.accumulate});
  backend_.run(ScaledProduct{.a = rows,
                             .b = fp8_weight(call, f.w_transposed),
                             .a_scale = kept(call, f.dy_scale),
                             .b_scale = fp8_weight(call, f.w_scale),
                             .bias = {},
                             .c = dx,
                             .accumulate = false});
}

void Units::fp8_backward_weight(const UnitCall& call, int64_t w) {
  const Fp8Linear& f = fp8_linear(w);
  backend_.run(ScaledProduct{.a = kept(call, f.dy),
                             .b = saved(call, f.x),
                             .a_scale = kept(call, f.dy_scale),
                             .b_scale = saved(call, f.x_scale),
                             .bias = {},
                             .c = gradient(call, w),
                             .accumulate = call.accumulate});
}

}  // namespace gptrain
