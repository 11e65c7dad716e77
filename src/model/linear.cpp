#include "model/linear.h"

#include "base/fp8.h"
#include "ops/fused_product.h"

namespace gptrain {
namespace {

// Input and gradient are kept as they are computed.
class PlainLinear : public Linear {
 public:
  PlainLinear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design, int64_t input_rows)
      : context_(context), layout_(layout), design_(design), input_(design.saved_input) {
    if (input_ == LayerLayout::none) {
      input_ = layout.save({.name = design.name + ".x",
                            .dtype = context.compute(),
                            .rows = input_rows,
                            .cols = design.weight.cols,
                            .last_reader = LastReader::weight_gradient});
    } else {
      layout.read_by_weight(input_);
    }
    if (!design.gradient_is_shared) {
      gradient_ = layout.leave({.name = design.name + ".dy",
                                .dtype = context.compute(),
                                .rows = context.tensor.all_rows(),
                                .cols = design.weight.rows});
    }
  }

  Factor input_room(const LayerCall& call, WorkspaceFrame&) const override { return {layout_.at(call, input_)}; }
  Factor output_gradient_room(const LayerCall& call, WorkspaceFrame&) const override {
    return {layout_.at(call, gradient_)};
  }
  bool wants_amax() const override { return false; }
  bool weight_reads_shared_gradient() const override { return design_.gradient_is_shared; }
  bool fuses(ActivationKind kind, int64_t width) const override {
    return fused_activation(kind, context_.compute(), width, context_.backend.target());
  }

  void prepare_weight(const LayerCall&) override {}
  void keep_input(const LayerCall&, const Factor&) override {}

  void backward_input(const LayerCall& call, const Factor& dy, const Matrix& dx,
                      const Matrix& pre_activation) override {
    context_.backend.run(LinearBackwardInput{.dy = dy.x,
                                             .w = context_.weight(call, design_.weight),
                                             .dx = dx,
                                             .true_out = design_.weight.true_rows,
                                             .pre_activation = pre_activation});
  }

  void backward_weight(const LayerCall& call, const TensorRows::Gathering& input,
                       const Matrix& shared_gradient) override {
    context_.backend.run(
        LinearBackwardWeight{.x = context_.tensor.wait(input),
                             .dy = design_.gradient_is_shared ? shared_gradient : layout_.at(call, gradient_),
                             .dw = design_.weight.gradient(call),
                             .d_bias = design_.bias.gradient(call),
                             .accumulate = call.accumulate,
                             .true_out = design_.weight.true_rows});
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
  Matrix input(const LayerCall& call) const { return layout_.at(call, input_); }

  const LayerContext& context_;

 private:
  const LayerLayout& layout_;
  const LinearDesign design_;
  LayerLayout::Field input_;
  LayerLayout::Field gradient_ = LayerLayout::none;
};

class ColumnLinear final : public PlainLinear {
 public:
  ColumnLinear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design)
      : PlainLinear(context, layout, design, context.tensor.own_rows()) {}

  // Where each rank holds its rows of x, they are gathered piece by piece: a piece is multiplied while the next is on
  // its way.
  void forward(const LayerCall& call, const Factor& factor, const LinearOutput& out) override {
    const Matrix& x = factor.x;
    TensorRows& tensor = context_.tensor;
    if (!tensor.has_own_rows()) return product(call, x, out);
    WorkspaceFrame frame(*call.workspace);
    const Matrix whole = tensor.room_for_all_rows(frame, x);
    const auto piece_of = [&](const Matrix& matrix, int64_t rank) {
      return matrix.given() ? matrix.row_range(rank * x.rows, x.rows) : Matrix{};
    };
    const auto multiply = [&](const Matrix& piece, int64_t rank) {
      product(call, piece, {piece_of(out.y, rank), piece_of(out.pre_activation, rank), out.with_bias});
    };
    const auto send = [&](int64_t rank) {
      return tensor.begin_broadcast(rank == tensor.rank() ? x : piece_of(whole, rank), rank);
    };
    // Every rank issues the pieces in the same order, one ahead of the product that needs it.
    TensorRows::Ticket next = send(0);
    multiply(x, tensor.rank());
    for (int64_t rank = 0; rank < tensor.size(); ++rank) {
      const TensorRows::Ticket ready = next;
      if (rank + 1 < tensor.size()) next = send(rank + 1);
      tensor.wait(ready);
      if (rank != tensor.rank()) multiply(piece_of(whole, rank), rank);
    }
  }

  TensorRows::Gathering begin_weight(const LayerCall& call, WorkspaceFrame& frame) override {
    const Matrix rows = input(call);
    return context_.tensor.begin_gather(rows, context_.tensor.room_for_all_rows(frame, rows));
  }
};

class RowLinear final : public PlainLinear {
 public:
  RowLinear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design)
      : PlainLinear(context, layout, design, context.tensor.all_rows()) {}

  void forward(const LayerCall& call, const Factor& x, const LinearOutput& out) override {
    const bool adds_bias = out.with_bias && context_.tensor.rank() == 0;  // in the sum once
    product(call, x.x, {out.y, out.pre_activation, adds_bias});
  }

  TensorRows::Gathering begin_weight(const LayerCall& call, WorkspaceFrame&) override { return {input(call)}; }
};

}  // namespace

std::unique_ptr<Linear> make_linear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design) {
  if (is_fp8(context.shape.precision.linears)) return make_fp8_linear(context, layout, design);
  if (design.row_parallel) return std::make_unique<RowLinear>(context, layout, design);
  return std::make_unique<ColumnLinear>(context, layout, design);
}

}  // namespace gptrain
