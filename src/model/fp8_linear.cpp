// Linears with FP8 products (arXiv 2209.05433): inputs and weights in E4M3, gradients of outputs in E5M2, each tensor
// under a scale that it has itself asked for (current scaling), so that there is no state.
//
// Every product wants factors whose rows run along its depth. So what the gradient of the weight is a product of is
// stored transposed: that copy is what the records keep, in the place of the 16-bit input of the linear and the 16-bit
// gradient of its output. Where the products that come at once are FP8's, too, they have copies of the tensors as they
// are.
#include "base/fp8.h"
#include "model/gradient_sums.h"
#include "model/linear.h"

namespace gptrain {
namespace {

constexpr DType forward_dtype = DType::f8e4m3;
constexpr DType gradient_dtype = DType::f8e5m2;

// The gradient of the weight is an FP8 product, the others are products of 16 bits.
class Fp8WeightLinear : public Linear {
 public:
  Fp8WeightLinear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design)
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
  // A product finds no amax of what it has activated.
  bool fuses(ActivationKind, int64_t) const override { return false; }

  void prepare_weight(const LayerCall&) override {}

  void forward(const LayerCall& call, const Factor& x, const LinearOutput& out) override {
    WorkspaceFrame frame(*call.workspace);
    const Matrix whole = whole_input(x, frame);
    save_input(call, x, whole, {});
    context_.backend.run(LinearForward{.x = whole,
                                       .w = context_.weight(call, design_.weight),
                                       .bias = added_bias(call, out),
                                       .y = out.y,
                                       .true_out = design_.weight.true_rows});
  }

  void keep_input(const LayerCall& call, const Factor& x) override {
    WorkspaceFrame frame(*call.workspace);
    save_input(call, x, whole_input(x, frame), {});
  }

  void backward_input(const LayerCall& call, const Factor& dy, const Matrix& dx, const Matrix&) override {
    leave_gradient(call, dy, {});
    context_.backend.run(LinearBackwardInput{.dy = dy.x,
                                             .w = context_.weight(call, design_.weight),
                                             .dx = dx,
                                             .true_out = design_.weight.true_rows});
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

 protected:
  // Of a product with the weight, the terms that count in the model.
  int64_t true_terms() const { return context_.tensor.all_rows() * design_.weight.true_rows * design_.weight.cols; }

  // A sum over ranks has the bias once.
  Matrix added_bias(const LayerCall& call, const LinearOutput& out) const {
    const bool adds = out.with_bias && (!design_.row_parallel || context_.tensor.rank() == 0);
    return adds ? context_.weight(call, design_.bias) : Matrix{};
  }

  // All rows of the input, in `frame` where they are gathered.
  Matrix whole_input(const Factor& x, WorkspaceFrame& frame) const {
    TensorRows& tensor = context_.tensor;
    if (design_.row_parallel) return x.x;
    return tensor.wait(tensor.begin_gather(x.x, tensor.room_for_all_rows(frame, x.x)));
  }

  // Saves the input, of which `whole` is all rows, transposed; `rows`, if given, gets it as it is.
  void save_input(const LayerCall& call, const Factor& x, const Matrix& whole, const Matrix& rows) {
    WorkspaceFrame frame(*call.workspace);
    context_.backend.run(Quantize{.x = whole,
                                  .amax = whole_amax(x, input_is_part_, frame),
                                  .rows = rows,
                                  .transposed = layout_.at(call, input_),
                                  .inverse_scale = layout_.scale_at(call, input_)});
  }

  // Leaves the gradient of the output, transposed, and the sums of the bias' gradient; `rows` as above.
  void leave_gradient(const LayerCall& call, const Factor& dy, const Matrix& rows) {
    WorkspaceFrame frame(*call.workspace);
    context_.backend.run(Quantize{.x = dy.x,
                                  .amax = whole_amax(dy, gradient_is_part_, frame),
                                  .rows = rows,
                                  .transposed = layout_.at(call, gradient_),
                                  .inverse_scale = layout_.scale_at(call, gradient_),
                                  .column_sums = bias_sums_.at(call, 0)});
  }

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

  const LayerContext& context_;
  const LayerLayout& layout_;
  const LinearDesign design_;
  LayerLayout::Field input_, gradient_;

 private:
  Factor room(const LayerCall&, WorkspaceFrame& frame, int64_t rows, int64_t cols) const {
    return {frame.take(context_.compute(), rows, cols), frame.take(DType::f32, 1, amax_parts)};
  }

  const bool input_is_part_, gradient_is_part_;
  GradientSums bias_sums_;
};

// All three products are FP8's.
class Fp8Linear final : public Fp8WeightLinear {
 public:
  Fp8Linear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design)
      : Fp8WeightLinear(context, layout, design) {
    const Parameter& w = design.weight;
    weight_ = layout.prepare({design.name + ".w", forward_dtype, w.rows, w.cols});
    weight_transposed_ = layout.prepare({design.name + ".w_transposed", forward_dtype, w.rows, w.cols, Codec::fp8});
  }

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
    {
      WorkspaceFrame inner(*call.workspace);
      save_input(call, x, whole_input(x, inner), rows);
    }
    context_.backend.run(ScaledProduct{.a = rows,
                                       .b = layout_.at(call, weight_),
                                       .a_scale = layout_.scale_at(call, input_),
                                       .b_scale = layout_.scale_at(call, weight_transposed_),
                                       .bias = added_bias(call, out),
                                       .c = out.y,
                                       .accumulate = false,
                                       .true_terms = true_terms()});
  }

  void backward_input(const LayerCall& call, const Factor& dy, const Matrix& dx, const Matrix&) override {
    WorkspaceFrame frame(*call.workspace);
    const Matrix rows = frame.take(gradient_dtype, dy.x.rows, dy.x.cols);
    leave_gradient(call, dy, rows);
    context_.backend.run(ScaledProduct{.a = rows,
                                       .b = layout_.at(call, weight_transposed_),
                                       .a_scale = layout_.scale_at(call, gradient_),
                                       .b_scale = layout_.scale_at(call, weight_transposed_),
                                       .bias = {},
                                       .c = dx,
                                       .accumulate = false,
                                       .true_terms = true_terms()});
  }

 private:
  LayerLayout::Field weight_, weight_transposed_;
};

}  // namespace

std::unique_ptr<Linear> make_fp8_linear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design) {
  return std::make_unique<Fp8Linear>(context, layout, design);
}

std::unique_ptr<Linear> make_fp8_weight_linear(const LayerContext& context, LayerLayout& layout,
                                               const LinearDesign& design) {
  return std::make_unique<Fp8WeightLinear>(context, layout, design);
}

}  // namespace gptrain
