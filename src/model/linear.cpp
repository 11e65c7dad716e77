#include "model/linear.h"

#include <optional>

#include "base/fp8.h"
#include "model/projection.h"
#include "model/row_pieces.h"
#include "model/saved_matrix.h"
#include "ops/fused_product.h"

namespace gptrain::inline model {
namespace {

// RETURNS the rows of `matrix` that belong to `piece`, which begins at row `first` of another matrix; not given if
// `matrix` is not.
Matrix rows_of(const Matrix& matrix, int64_t first, const Matrix& piece) {
  return matrix.given() ? matrix.row_range(first, piece.rows) : Matrix{};
}

// Linear that saves the output's gradient as computed, and the input as a projection or in the format of its codec.
class PlainLinear : public Linear {
 public:
  // `input_rows`, `first_row`: rows of the input, and the first one's number in the micro-batch.
  PlainLinear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design, int64_t input_rows,
              int64_t first_row)
      : context_(context), layout_(layout), design_(design), input_rows_(input_rows), first_row_(first_row) {
    LayerLayout::Field input = design.saved_input;
    if (context.shape.choices.projection.is_at(design.site)) projection_.emplace(context, design.site, design.layer);
    if (input == LayerLayout::none) {
      const bool coded = !projection_ && input_codec(context) != Codec::plain;
      const bool rounded = !coded && factor_dtype() != context.compute();
      input = layout.save({.name = design.name + ".x",
                           .dtype = rounded ? factor_dtype() : context.compute(),
                           .rows = projection_ ? projection_->rows(input_rows) : input_rows,
                           .cols = design.weight.cols,
                           .codec = coded     ? input_codec(context)
                                    : rounded ? Codec::rounded
                                              : Codec::plain,
                           .last_reader = LastReader::weight_gradient});
    } else {
      layout.read_by_weight(input);
    }
    input_ = make_saved_matrix(context, layout, input);
    if (!design.gradient_is_shared) {
      gradient_ = layout.leave({.name = design.name + ".dy",
                                .dtype = context.compute(),
                                .rows = context.tensor.all_rows(),
                                .cols = design.weight.rows});
    }
  }

  GemmOperand input_buffer(const LayerCall& call, WorkspaceFrame& frame) const override {
    if (projection_) return {frame.take(context_.compute(), input_rows_, design_.weight.cols)};
    return {input_->buffer(call, frame)};
  }
  GemmOperand output_gradient_buffer(const LayerCall& call, WorkspaceFrame&) const override {
    return {layout_.at(call, gradient_)};
  }
  bool wants_amax() const override { return false; }
  bool weight_reads_shared_gradient() const override { return design_.gradient_is_shared; }
  bool fuses(ActivationKind kind, int64_t width) const override {
    return fused_activation(kind, context_.compute(), width, context_.backend.target());
  }

  void prepare_weight(const LayerCall&) override {}
  // A field of another part (LinearDesign::saved_input) is filled by that part.
  void keep_input(const LayerCall& call, const GemmOperand& x) override {
    if (design_.saved_input != LayerLayout::none) return;
    if (!projection_) return input_->keep(call, x.x);
    WorkspaceFrame frame(*call.workspace);
    const Matrix projected = input_->buffer(call, frame);
    projection_->run(call, x.x, first_row_, projected);
    input_->keep(call, projected);
  }

  void backward_input(const LayerCall& call, const GemmOperand& dy, const Matrix& dx,
                      const Matrix& pre_activation) override {
    input_gradient(call, dy.x, dx, pre_activation);
  }

  void backward_weight(const LayerCall& call, const TensorRows::Gathering& input,
                       const Matrix& shared_gradient) override {
    const Matrix dy = design_.gradient_is_shared ? shared_gradient : layout_.at(call, gradient_);
    LinearBackwardWeight gradient{.x = context_.tensor.wait(input),
                                  .dy = dy,
                                  .dw = design_.weight.gradient(call),
                                  .d_bias = design_.bias.gradient(call),
                                  .accumulate = call.accumulate,
                                  .true_out = design_.weight.true_rows};
    if (!projection_ && dy.dtype == factor_dtype()) return context_.backend.run(gradient);
    WorkspaceFrame frame(*call.workspace);
    if (projection_) {
      gradient.dy = frame.take(dy.dtype, projection_->rows(dy.rows), dy.cols);
      gradient.true_rows = dy.rows;
      projection_->run(call, dy, 0, gradient.dy);
    }
    gradient.dy = as_factor(gradient.dy, frame);
    // The bias' gradient is summed from the exact rows.
    if (gradient.d_bias.given())
      context_.backend.run(BiasGradient{.dy = dy, .d_bias = gradient.d_bias, .accumulate = call.accumulate});
    gradient.d_bias = {};
    context_.backend.run(gradient);
  }

 protected:
  void product(const LayerCall& call, const Matrix& x, const LinearOutput& out) {
    context_.backend.run(LinearForward{.x = x,
                                       .w = context_.weight(call, design_.weight),
                                       .bias = out.with_bias ? context_.weight(call, design_.bias) : Matrix{},
                                       .y = out.y,
                                       .true_out = design_.weight.true_rows,
                                       .pre_activation = out.pre_activation});
  }
  void input_gradient(const LayerCall& call, const Matrix& dy, const Matrix& dx, const Matrix& pre_activation) {
    context_.backend.run(LinearBackwardInput{.dy = dy,
                                             .w = context_.weight(call, design_.weight),
                                             .dx = dx,
                                             .true_out = design_.weight.true_rows,
                                             .pre_activation = pre_activation});
  }
  // RETURNS the saved input as W multiplies it.
  Matrix input(const LayerCall& call, WorkspaceFrame& frame) const {
    return as_factor(input_->read(call, frame), frame);
  }

  const LayerContext& context_;

 private:
  DType factor_dtype() const { return context_.shape.precision.weight_gradients; }
  Matrix as_factor(const Matrix& matrix, WorkspaceFrame& frame) const {
    if (matrix.dtype == factor_dtype()) return matrix;
    const Matrix rounded = frame.take(factor_dtype(), matrix.rows, matrix.cols);
    context_.backend.run(Cast{.from = matrix, .to = rounded});
    return rounded;
  }

  const LayerLayout& layout_;
  const LinearDesign design_;
  const int64_t input_rows_, first_row_;
  std::optional<Projection> projection_;
  std::unique_ptr<SavedMatrix> input_;  // the input or its projection
  LayerLayout::Field gradient_ = LayerLayout::none;
};

class ColumnLinear final : public PlainLinear {
 public:
  ColumnLinear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design)
      : PlainLinear(context, layout, design, context.tensor.own_rows(), context.tensor.first_row()) {}

  // With sequence parallelism, the ranks' rows of x are gathered piece by piece: one piece is multiplied while the next
  // is in flight.
  TensorRows::Ticket forward(const LayerCall& call, const GemmOperand& factor, const LinearOutput& out) override {
    keep_input(call, factor);
    const Matrix& x = factor.x;
    TensorRows& tensor = context_.tensor;
    if (!tensor.has_own_rows()) {
      product(call, x, out);
      return Lane::done;
    }
    WorkspaceFrame frame(*call.workspace);
    multiply_gathered(tensor, x, tensor.buffer_for_all_rows(frame, x), [&](const Matrix& rows, int64_t rank) {
      const int64_t first = rank * rows.rows;
      product(call, rows, {rows_of(out.y, first, rows), rows_of(out.pre_activation, first, rows), out.with_bias});
    });
    return Lane::done;
  }

  TensorRows::Gathering begin_weight(const LayerCall& call, WorkspaceFrame& frame) override {
    const Matrix rows = input(call, frame);
    return context_.tensor.begin_gather(rows, context_.tensor.buffer_for_all_rows(frame, rows));
  }
};

class RowLinear final : public PlainLinear {
 public:
  RowLinear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design)
      : PlainLinear(context, layout, design, context.tensor.all_rows(), 0) {}

  bool exchanges_pieces() const override { return context_.tensor.overlaps(); }

  TensorRows::Ticket forward(const LayerCall& call, const GemmOperand& x, const LinearOutput& out) override {
    keep_input(call, x);
    const bool adds_bias = out.with_bias && context_.tensor.rank() == 0;  // added once in the sum
    if (!out.sum.given()) {
      product(call, x.x, {out.y, out.pre_activation, adds_bias});
      return Lane::done;
    }
    const auto compute = [&](int64_t first, const Matrix& y) {
      product(call, x.x.row_range(first, y.rows), {.y = y, .with_bias = adds_bias});
    };
    return sum_in_pieces(context_.tensor, out.y, out.sum, compute).ticket;
  }

  void backward_input(const LayerCall& call, const GemmOperand& dy, const Matrix& dx,
                      const Matrix& pre_activation) override {
    if (!dy.own.given()) return input_gradient(call, dy.x, dx, pre_activation);
    multiply_gathered(context_.tensor, dy.own, dy.x, [&](const Matrix& rows, int64_t rank) {
      const int64_t first = rank * rows.rows;
      input_gradient(call, rows, rows_of(dx, first, rows), rows_of(pre_activation, first, rows));
    });
  }

  TensorRows::Gathering begin_weight(const LayerCall& call, WorkspaceFrame& frame) override {
    return {input(call, frame)};
  }
};

}  // namespace

GemmOperand Linear::quantized_input_buffer(const LayerCall& call, WorkspaceFrame& frame, bool) const {
  return input_buffer(call, frame);
}

GemmOperand Linear::quantized_gradient_buffer(const LayerCall& call, WorkspaceFrame& frame) const {
  return output_gradient_buffer(call, frame);
}

std::unique_ptr<Linear> make_linear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design) {
  if (is_fp8(context.shape.precision.linears)) return make_fp8_linear(context, layout, design);
  if (is_fp8(context.shape.precision.weight_gradients)) return make_fp8_weight_linear(context, layout, design);
  if (design.row_parallel) return std::make_unique<RowLinear>(context, layout, design);
  return std::make_unique<ColumnLinear>(context, layout, design);
}

}  // namespace gptrain::model
