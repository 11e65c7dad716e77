// Linears with FP8 products (arXiv 2209.05433): inputs and weights in E4M3, gradients of outputs in E5M2. A weight's
// scale follows from its present amax (current scaling), and so do those of inputs and gradients without
// precision.amax_history. With it they follow from the largest amax of earlier steps (delayed scaling), so that the op
// that computes a tensor can quantize it in the same pass; each amax is kept for the steps to come
// (fp8_amax_statistic).
//
// Every FP8 product needs factors whose rows run along its depth. So the records store both factors of the weight's
// gradient transposed in FP8, in place of the linear's 16-bit input and the 16-bit gradient of its output. If the other
// products are FP8, too, they use temporary copies that are not transposed.
#include "base/fp8.h"
#include "model/gradient_sums.h"
#include "model/linear.h"
#include "model/statistics.h"

namespace gptrain::inline model {
namespace {

constexpr DType forward_dtype = DType::f8e4m3;
constexpr DType gradient_dtype = DType::f8e5m2;

// Linear whose weight gradient is an FP8 product; its other products are of 16 bits.
class Fp8WeightLinear : public Linear {
 public:
  Fp8WeightLinear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design)
      : context_(context),
        layout_(layout),
        design_(design),
        // A rank of a row-parallel linear has some columns of x and all columns of y, a rank of a column-parallel
        // linear the reverse. With sequence parallelism, an amax may be of some rows only.
        input_is_part_(design.row_parallel || context.tensor.has_own_rows()),
        gradient_is_part_(!design.row_parallel || context.tensor.has_own_rows()),
        bias_sums_(context, layout, design.name + ".bias", {design.bias}) {
    const int64_t n = context.tensor.all_rows();
    const Parameter& w = design.weight;
    input_ = layout.save({design.name + ".x", forward_dtype, n, w.cols, Codec::fp8, LastReader::weight_gradient});
    gradient_ = layout.leave({design.name + ".dy", gradient_dtype, n, w.rows, Codec::fp8});
  }

  GemmOperand input_buffer(const LayerCall& call, WorkspaceFrame& frame) const override {
    const int64_t rows = design_.row_parallel ? context_.tensor.all_rows() : context_.tensor.own_rows();
    return buffer(call, frame, rows, design_.weight.cols);
  }
  GemmOperand output_gradient_buffer(const LayerCall& call, WorkspaceFrame& frame) const override {
    return buffer(call, frame, context_.tensor.all_rows(), design_.weight.rows);
  }
  bool wants_amax() const override { return !is_delayed(); }
  bool weight_reads_shared_gradient() const override { return false; }
  // A product that computes the activation does not give its amax.
  bool fuses(ActivationKind, int64_t) const override { return false; }

  void prepare_weight(const LayerCall&) override {}

  TensorRows::Ticket forward(const LayerCall& call, const GemmOperand& x, const LinearOutput& out) override {
    WorkspaceFrame frame(*call.workspace);
    const Matrix whole = whole_input(x, frame);
    save_input(call, x, whole, {});
    context_.backend.run(LinearForward{.x = whole,
                                       .w = context_.weight(call, design_.weight),
                                       .bias = added_bias(call, out),
                                       .y = out.y,
                                       .true_out = design_.weight.true_rows});
    return Lane::done;
  }

  void keep_input(const LayerCall& call, const GemmOperand& x) override {
    WorkspaceFrame frame(*call.workspace);
    save_input(call, x, whole_input(x, frame), {});
  }

  void backward_input(const LayerCall& call, const GemmOperand& dy, const Matrix& dx, const Matrix&) override {
    leave_gradient(call, dy, {});
    context_.backend.run(LinearBackwardInput{
        .dy = dy.x, .w = context_.weight(call, design_.weight), .dx = dx, .true_out = design_.weight.true_rows});
  }

  // The saved input already has all rows.
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
  // RETURNS the multiply-adds, without padding, of a product with the weight.
  int64_t true_terms() const { return context_.tensor.all_rows() * design_.weight.true_rows * design_.weight.cols; }

  // RETURNS the bias if this rank adds it, else a matrix that is not given: one rank alone adds the bias to
  // a sum over ranks.
  Matrix added_bias(const LayerCall& call, const LinearOutput& out) const {
    const bool adds = out.with_bias && (!design_.row_parallel || context_.tensor.rank() == 0);
    return adds ? context_.weight(call, design_.bias) : Matrix{};
  }

  // RETURNS all rows of the input, in `frame` if they are gathered.
  Matrix whole_input(const GemmOperand& x, WorkspaceFrame& frame) const {
    TensorRows& tensor = context_.tensor;
    if (design_.row_parallel) return x.x;
    return tensor.wait(tensor.begin_gather(x.x, tensor.buffer_for_all_rows(frame, x.x)));
  }

  enum class Quantity : uint8_t { input, gradient };

  bool is_delayed() const { return context_.shape.precision.amax_history > 0; }

  // RETURNS this linear's amax in a row of fp8_amax_statistic; not given if the row is not.
  Matrix amax_of(Quantity quantity, const Matrix& all) const {
    constexpr int64_t sites = std::ssize(linear_site_names);
    const int64_t gradients = quantity == Quantity::gradient ? context_.shape.model.num_layers : 0;
    return all.given() ? all.column_range((gradients + design_.layer) * sites + static_cast<int64_t>(design_.site), 1)
                       : Matrix();
  }

  // RETURNS the FP8 copies of the input or of the gradient of the output, of which the transposed one is saved for W.
  // `rows`, if given, gets the copy that is not transposed. `amax`: not used with delayed scaling.
  Fp8Copies copies(const LayerCall& call, Quantity quantity, const Matrix& rows, const Matrix& amax = {}) const {
    const bool is_gradient = quantity == Quantity::gradient;
    const LayerLayout::Field field = is_gradient ? gradient_ : input_;
    Fp8Copies to{.amax = amax,
                 .rows = rows,
                 .transposed = layout_.at(call, field),
                 .inverse_scale = layout_.scale_at(call, field),
                 .column_sums = is_gradient ? bias_sums_.at(call, 0) : Matrix()};
    if (!is_delayed()) return to;
    to.amax =
        amax_of(quantity, Matrix(call.amax_forecast, DType::f32, 1, num_fp8_amaxes(context_.shape.model.num_layers)));
    to.largest = amax_of(quantity, call.statistics.find(fp8_amax_statistic));
    return to;
  }

  // Saves all rows of the input, `whole`, transposed in FP8. `rows` as in copies().
  void save_input(const LayerCall& call, const GemmOperand& x, const Matrix& whole, const Matrix& rows) {
    WorkspaceFrame frame(*call.workspace);
    const Matrix amax = is_delayed() ? Matrix() : whole_amax(x, input_is_part_, frame);
    context_.backend.run(Quantize{.x = whole, .to = copies(call, Quantity::input, rows, amax)});
  }

  // Saves the gradient of the output, transposed, and the sums of the bias' gradient, for W. `rows` as in copies().
  void leave_gradient(const LayerCall& call, const GemmOperand& dy, const Matrix& rows) {
    WorkspaceFrame frame(*call.workspace);
    const Matrix amax = is_delayed() ? Matrix() : whole_amax(dy, gradient_is_part_, frame);
    context_.backend.run(Quantize{.x = dy.x, .to = copies(call, Quantity::gradient, rows, amax)});
  }

  // RETURNS the amax of the whole tensor, computed in `frame` if the factor comes without. is_part: takes the maximum
  // over the tensor ranks, so that a tensor has one scale for any number of ranks.
  Matrix whole_amax(const GemmOperand& factor, bool is_part, WorkspaceFrame& frame) {
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
  GemmOperand buffer(const LayerCall&, WorkspaceFrame& frame, int64_t rows, int64_t cols) const {
    GemmOperand operand{.x = frame.take(context_.compute(), rows, cols)};
    if (wants_amax()) operand.amax = frame.take(DType::f32, 1, amax_parts);
    return operand;
  }

  const bool input_is_part_, gradient_is_part_;
  GradientSums bias_sums_;
};

// Linear with three FP8 products.
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
                                  .to = {.amax = whole_amax({w}, true, frame),
                                         .rows = layout_.at(call, weight_),
                                         .transposed = layout_.at(call, weight_transposed_),
                                         .inverse_scale = layout_.scale_at(call, weight_transposed_)}});
  }

  // The ranks of a column-parallel linear may have to gather the input before its transposed copy is whole.
  GemmOperand quantized_input_buffer(const LayerCall& call, WorkspaceFrame& frame, bool for_product) const override {
    if (!is_delayed() || !design_.row_parallel) return input_buffer(call, frame);
    Matrix rows;
    if (for_product) rows = frame.take(forward_dtype, context_.tensor.all_rows(), design_.weight.cols);
    return {.x = {}, .fp8 = copies(call, Quantity::input, rows)};
  }
  GemmOperand quantized_gradient_buffer(const LayerCall& call, WorkspaceFrame& frame) const override {
    if (!is_delayed()) return output_gradient_buffer(call, frame);
    const Matrix rows = frame.take(gradient_dtype, context_.tensor.all_rows(), design_.weight.rows);
    return {.x = {}, .fp8 = copies(call, Quantity::gradient, rows)};
  }

  void keep_input(const LayerCall& call, const GemmOperand& x) override {
    if (!x.fp8.given()) Fp8WeightLinear::keep_input(call, x);
  }

  TensorRows::Ticket forward(const LayerCall& call, const GemmOperand& x, const LinearOutput& out) override {
    WorkspaceFrame frame(*call.workspace);
    Matrix rows = x.fp8.rows;
    if (!x.fp8.given()) {
      rows = frame.take(forward_dtype, context_.tensor.all_rows(), x.x.cols);
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
    return Lane::done;
  }

  void backward_input(const LayerCall& call, const GemmOperand& dy, const Matrix& dx, const Matrix&) override {
    WorkspaceFrame frame(*call.workspace);
    Matrix rows = dy.fp8.rows;
    if (!dy.fp8.given()) {
      rows = frame.take(gradient_dtype, dy.x.rows, dy.x.cols);
      leave_gradient(call, dy, rows);
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

namespace {

StoredFields add_fp8(RecordLayout& layout, const SavedTensor& tensor) {
  return {.data = layout.add(tensor.dtype, tensor.cols, tensor.rows), .scale = layout.add(DType::f32, 1, 1)};
}

}  // namespace

const CodecType fp8_codec = {Codec::fp8, add_fp8, nullptr};

}  // namespace gptrain::model
