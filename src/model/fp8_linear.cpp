// A linear with FP8 products (arXiv 2209.05433): inputs and weights in E4M3, gradients of outputs in E5M2, each tensor
// under a scale that it has itself asked for (current scaling), so that there is no state.
//
// Every product wants factors whose rows run along its depth, so each tensor is stored as it is, for the product that
// comes at once, and transposed, for the gradient of the weight: that copy is what the records keep, in the place of
// the 16-bit input of the linear and the 16-bit gradient of its output.
#include "base/fp8.h"
#include "model/gradient_sums.h"
#include "model/linear.h"

namespace gptrain {
namespace {

constexpr DType forward_dtype = DType::f8e4m3;
constexpr DType gradient_dtype = DType::f8e5m2;

class Fp8Linear final : public Linear {
 public:
  Fp8Linear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design)
      : context_(context),
        layout_(layout),
        design_(design),
        // A row-parallel linear has its columns of x and all of y, a column-parallel one the other way round, and maybe
        // only the amax of some rows.
        input_is_part_(design.row_parallel || context.tensor.has_own_rows()),
        gradient_is_part_(!design.row_parallel || context.tensor.has_own_rows()),
        bias_sums_(context, layout, design.name + ".bias", {design.bias}) {
    const int64_t n = context.tensor.all_rows();
    const Parameter& w = design.weight;
    input_ = layout.save({design.name + ".x", forward_dtype, n, w.cols, Codec::fp8, LastReader::weight_gradient});
    gradient_ = layout.leave({design.name + ".dy", gradient_dtype, n, w.rows, Codec::fp8});
    weight_ = layout.prepare({design.name + ".w", forward_dtype, w.rows, w.cols});
    weight_transposed_ = layout.prepare({design.name + ".w_transposed", forward_dtype, w.rows, w.cols, Codec::fp8});
  }

  Factor input_room(const LayerCall& call, WorkspaceFrame& frame) const override {
    const int64_t rows = design_.row_parallel ? context_.tensor.all_rows() : context_.tensor.own_rows();
    return room(call, frame, rows, design_.weight.cols);
  }
  Factor output_gradient_room(const LayerCall& call, WorkspaceFrame& frame) const override {
    return room(call, frame, context_.tensor.all_rows(), design_.weight.rows);
  }
  bool wants_amax() const override { return true; }
  bool weight_reads_shared_gradient() const override { return false; }
  bool fuses(ActivationKind, int64_t) const override { return false; }

  void prepare_weight(const LayerCall& call) override {
    if (!call.prepare_weights) return;
    const Matrix w = context_.weight(call, design_.weight);
    WorkspaceFrame frame(*call.workspace);
    context_.backend.run(Quantize{.x = w,
                                  .amax = whole_amax({w}, true, frame),
                                  .rows = layout_.at(call, weight_),
                                  .transposed = layout_.at(call, weight_transposed_),
                                  .inverse_scale = layout_.scale_at(call, weight_transposed_)});
  }

  void forward(const LayerCall& call, const Factor& x, const LinearOutput& out) override {
    WorkspaceFrame frame(*call.workspace);
    const Matrix rows = frame.take(forward_dtype, context_.tensor.all_rows(), x.x.cols);
    save_input(call, x, rows);
    // A sum over ranks has the bias once.
    const bool adds_bias = out.with_bias && (!design_.row_parallel || context_.tensor.rank() == 0);
    context_.backend.run(ScaledProduct{.a = rows,
                                       .b = layout_.at(call, weight_),
                                       .a_scale = layout_.scale_at(call, input_),
                                       .b_scale = layout_.scale_at(call, weight_transposed_),
                                       .bias = adds_bias ? context_.weight(call, design_.bias) : Matrix{},
                                       .c = out.y,
                                       .accumulate = false,
                                       .true_terms = true_terms()});
  }

  void keep_input(const LayerCall& call, const Factor& x) override { save_input(call, x, {}); }

  // With the sums of the bias' gradient.
  void backward_input(const LayerCall& call, const Factor& dy, const Matrix& dx, const Matrix&) override {
    WorkspaceFrame frame(*call.workspace);
    const Matrix rows = frame.take(gradient_dtype, dy.x.rows, dy.x.cols);
    {
      WorkspaceFrame inner(*call.workspace);
      context_.backend.run(Quantize{.x = dy.x,
                                    .amax = whole_amax(dy, gradient_is_part_, inner),
                                    .rows = rows,
                                    .transposed = layout_.at(call, gradient_),
                                    .inverse_scale = layout_.scale_at(call, gradient_),
                                    .column_sums = bias_sums_.at(call, 0)});
    }
    context_.backend.run(ScaledProduct{.a = rows,
                                       .b = layout_.at(call, weight_transposed_),
                                       .a_scale = layout_.scale_at(call, gradient_),
                                       .b_scale = layout_.scale_at(call, weight_transposed_),
                                       .bias = {},
                                       .c = dx,
                                       .accumulate = false,
                                       .true_terms = true_terms()});
  }

  // The transposed input is of all rows already.
  TensorRows::Gathering begin_weight(const LayerCall&, WorkspaceFrame&) override { return {}; }

  void backward_weight(const LayerCall& call, const TensorRows::Gathering&, const Matrix&) override {
    context_.backend.run(ScaledProduct{.a = layout_.at(call, gradient_),
                                       .b = layout_.at(call, input_),
                                       .a_scale = layout_.scale_at(call, gradient_),
                                       .b_scale = layout_.scale_at(call, input_),
                                       .bias = {},
                                       .c = design_.weight.gradient(call),
                                       .accumulate = call.accumulate,
                                       .true_terms = true_terms()});
    bias_sums_.add(call);
  }

 private:
  Factor room(const LayerCall&, WorkspaceFrame& frame, int64_t rows, int64_t cols) const {
    return {frame.take(context_.compute(), rows, cols), frame.take(DType::f32, 1, amax_parts)};
  }

  // Of a product with the weight, the terms that count in the model.
  int64_t true_terms() const { return context_.tensor.all_rows() * design_.weight.true_rows * design_.weight.cols; }

  // The factor's amax; taken here, in `frame`, where the factor comes without. Where that is of a part of the tensor,
  // it becomes that of the whole: so that a tensor has one scale, however many ranks share it.
  Matrix whole_amax(const Factor& factor, bool is_part, WorkspaceFrame& frame) {
    Matrix amax = factor.amax;
    if (!amax.given()) {
      amax = frame.take(DType::f32, 1, amax_parts);
      context_.backend.run(Amax{.x = factor.x, .amax = amax});
    }
    if (is_part) context_.tensor.take_max(amax);
    return amax;
  }

  // Saves the input, transposed; `rows`, if given, gets it as it is.
  void save_input(const LayerCall& call, const Factor& x, const Matrix& rows) {
    TensorRows& tensor = context_.tensor;
    WorkspaceFrame frame(*call.workspace);
    const Matrix amax = whole_amax(x, input_is_part_, frame);
    const Matrix whole =
        design_.row_parallel ? x.x : tensor.wait(tensor.begin_gather(x.x, tensor.room_for_all_rows(frame, x.x)));
    context_.backend.run(Quantize{.x = whole,
                                  .amax = amax,
                                  .rows = rows,
                                  .transposed = layout_.at(call, input_),
                                  .inverse_scale = layout_.scale_at(call, input_)});
  }

  const LayerContext& context_;
  const LayerLayout& layout_;
  const LinearDesign design_;
  const bool input_is_part_, gradient_is_part_;
  GradientSums bias_sums_;
  LayerLayout::Field input_, gradient_, weight_, weight_transposed_;
};

}  // namespace

std::unique_ptr<Linear> make_fp8_linear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design) {
  return std::make_unique<Fp8Linear>(context, layout, design);
}

}  // namespace gptrain
