// The FFN branch: norm, a linear to the hidden width, an activation (which may be gated), and a linear back to the
// residual stream.
#include "model/branch.h"
#include "model/saved_matrix.h"
#include "ops/few_bits.h"

namespace gptrain {
namespace {

class FfnBranch final : public Branch {
 public:
  FfnBranch(const LayerContext& context, LayerLayout& layout, int64_t layer, const UnitTensors& tensors);

  void prepare_weights(const LayerCall& call) override;
  void forward(const LayerCall& call, const NormInput& in, const Matrix& part) override;
  void recompute(const LayerCall& call, const Matrix& x) override;
  void backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights) override;
  void backward_weight(const LayerCall& call, const Matrix& d_out) override;

 private:
  ActivationKind activation() const { return context_.shape.model.activation; }
  int64_t width() const { return context_.shape.model.ffn_hidden_size / context_.tensor.size(); }
  int64_t hidden_width() const { return is_gated(activation()) ? 2 * width() : width(); }
  int code_bits() const { return context_.shape.code_bits; }
  // Of the activation's input, which is saved without it, unless the products compute the activation too.
  Matrix bias(const LayerCall& call) const { return context_.weight(call, in_bias_); }

  Matrix codes(const LayerCall& call) const { return hidden_ ? Matrix() : layout_.at(call, codes_); }

  // Where the products do not compute it.
  void activate(const LayerCall& call, const Matrix& hidden, const Factor& activated);

  std::unique_ptr<Linear> in_;
  Parameter in_bias_;
  std::unique_ptr<SavedMatrix> hidden_;           // the activation's input
  LayerLayout::Field codes_ = LayerLayout::none;  // with code_bits of its derivative, in place of that
  bool activation_is_fused_ = false;
};

FfnBranch::FfnBranch(const LayerContext& context, LayerLayout& layout, int64_t layer, const UnitTensors& tensors)
    : Branch(context, layout,
             {.layer = static_cast<uint32_t>(layer),
              .site = 1,
              .norm = tensors.find("norm2.weight"),
              .norm_bias = tensors.find("norm2.bias"),
              .norm_name = "norm2"}),
      in_bias_(tensors.find("ffn.in.bias")) {
  in_ = make_linear(context, layout,
                    {.name = "ffn.in",
                     .site = LinearSite::ffn_in,
                     .layer = layer_,
                     .weight = tensors.find("ffn.in.weight"),
                     .bias = in_bias_,
                     .row_parallel = false});
  out_ = make_linear(context, layout,
                     {.name = "ffn.out",
                      .site = LinearSite::ffn_out,
                      .layer = layer_,
                      .weight = tensors.find("ffn.out.weight"),
                      .bias = tensors.find("ffn.out.bias"),
                      .row_parallel = true,
                      .gradient_is_shared = shares_gradient(context)});
  // Products that compute the activation do not code its derivative.
  activation_is_fused_ = !layout.keeps_products() && code_bits() == 0 && in_->fuses(activation(), width()) &&
                         out_->fuses(activation(), width());
  if (code_bits() != 0) {
    codes_ = layout.save({"ffn.codes", DType::u8, context.shape.rows(), code_bytes(width(), code_bits())});
  } else {
    hidden_ = make_saved_matrix(
        context, layout,
        layout.save_product({"ffn.hidden", context.compute(), context.shape.rows(), hidden_width()}));
  }
}

void FfnBranch::prepare_weights(const LayerCall& call) {
  in_->prepare_weight(call);
  out_->prepare_weight(call);
}

void FfnBranch::forward(const LayerCall& call, const NormInput& in, const Matrix& part) {
  WorkspaceFrame frame(*call.workspace);
  const Factor activated = out_->input_room(call, frame);
  const Matrix hidden =
      hidden_ ? hidden_->room(call, frame) : frame.take(context_.compute(), context_.shape.rows(), hidden_width());
  {
    WorkspaceFrame inner(*call.workspace);
    const Factor normed = in_->input_room(call, inner);
    norm_.forward(call, in, normed);
    if (activation_is_fused_) {
      in_->forward(call, normed, {.y = activated.x, .pre_activation = hidden});
    } else {
      in_->forward(call, normed, {.y = hidden, .with_bias = false});
    }
  }
  if (!activation_is_fused_) activate(call, hidden, activated);
  if (hidden_) hidden_->keep(call, hidden);
  if (part.given()) {
    out_->forward(call, activated, {part});
  } else {
    out_->keep_input(call, activated);
  }
}

void FfnBranch::recompute(const LayerCall& call, const Matrix& x) {
  WorkspaceFrame frame(*call.workspace);
  {
    WorkspaceFrame inner(*call.workspace);
    const Factor normed = in_->input_room(call, inner);
    norm_.forward(call, {.x = x}, normed);
    in_->keep_input(call, normed);
  }
  const Factor activated = out_->input_room(call, frame);
  activate(call, hidden_->read(call, frame), activated);
  out_->keep_input(call, activated);
}

void FfnBranch::activate(const LayerCall& call, const Matrix& hidden, const Factor& activated) {
  context_.backend.run(ActivationForward{.kind = activation(),
                                         .x = hidden,
                                         .bias = bias(call),
                                         .y = activated.x,
                                         .amax = activated.amax,
                                         .code_bits = code_bits(),
                                         .codes = codes(call)});
}

void FfnBranch::backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights) {
  TensorRows& tensor = context_.tensor;
  WorkspaceFrame frame(*call.workspace);
  const Factor d_branch = branch_gradient(call, gradient.d_out, frame);
  TensorRows::Gathering normed;
  if (with_weights) normed = in_->begin_weight(call, frame);
  const Matrix hidden = hidden_ ? hidden_->read(call, frame) : Matrix();
  const Factor d_hidden = in_->output_gradient_room(call, frame);
  if (activation_is_fused_) {
    out_->backward_input(call, d_branch, d_hidden.x, hidden);
  } else {
    WorkspaceFrame inner(*call.workspace);
    const Matrix d_activated = inner.take(context_.compute(), tensor.all_rows(), width());
    out_->backward_input(call, d_branch, d_activated);
    context_.backend.run(ActivationBackward{.kind = activation(),
                                            .x = hidden,
                                            .bias = hidden_ ? bias(call) : Matrix(),
                                            .dy = d_activated,
                                            .dx = d_hidden.x,
                                            .amax = d_hidden.amax,
                                            .code_bits = code_bits(),
                                            .codes = codes(call)});
  }
  const Matrix part = frame.take(context_.compute(), tensor.all_rows(), context_.shape.model.hidden_size);
  in_->backward_input(call, d_hidden, part);
  const TensorRows::Reduction d_norm = tensor.begin_sum(part, frame);
  if (with_weights) {
    out_->backward_weight(call, out_->begin_weight(call, frame), gradient.d_out.x);
    in_->backward_weight(call, normed);
  }
  norm_.backward_input(call, {tensor.wait(d_norm), gradient.x, gradient.d_out.x, gradient.dx});
  if (with_weights) norm_.backward_weight(call);
}

void FfnBranch::backward_weight(const LayerCall& call, const Matrix& d_out) {
  WorkspaceFrame frame(*call.workspace);
  const TensorRows::Gathering normed = in_->begin_weight(call, frame);
  out_->backward_weight(call, out_->begin_weight(call, frame), d_out);
  in_->backward_weight(call, normed);
  norm_.backward_weight(call);
}

}  // namespace

std::unique_ptr<Branch> make_ffn_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                        const UnitTensors& tensors) {
  return std::make_unique<FfnBranch>(context, layout, layer, tensors);
}

}  // namespace gptrain
