// The FFN branch: norm, a linear to the hidden width, an activation (which may be gated), and a linear back to the
// width of the residual stream.
#include "model/linear_branch.h"
#include "model/saved_matrix.h"
#include "ops/few_bits.h"

namespace gptrain::inline model {
namespace {

class FfnBranch final : public LinearBranch {
 public:
  FfnBranch(const LayerContext& context, LayerLayout& layout, int64_t layer, const UnitTensors& tensors);

 private:
  TensorRows::Ticket run(const LayerCall& call, const NormInput& in, const Output& out) override;
  void recompute_core(const LayerCall& call) override;
  GemmOperand core_backward(const LayerCall& call, const GemmOperand& d_branch, WorkspaceFrame& frame) override;

  ActivationKind activation() const { return context_.shape.model.activation; }
  int64_t width() const { return context_.shape.model.ffn(layer_).hidden_size / context_.tensor.size(); }
  int64_t hidden_width() const { return is_gated(activation()) ? 2 * width() : width(); }
  int code_bits() const { return context_.shape.choices.code_bits; }
  // RETURNS the bias of the activation's input, which is saved without the bias, unless the products compute the
  // activation.
  Matrix bias(const LayerCall& call) const { return context_.weight(call, in_bias_); }

  Matrix codes(const LayerCall& call) const { return hidden_ ? Matrix() : layout_.at(call, codes_); }

  // RETURNS memory for the activation's output. Ops that write codes of its derivative do not quantize it.
  GemmOperand activated_buffer(const LayerCall& call, WorkspaceFrame& frame, bool for_product) const {
    return code_bits() == 0 ? out_->quantized_input_buffer(call, frame, for_product) : out_->input_buffer(call, frame);
  }

  // Computes the activation if the products do not.
  void activate(const LayerCall& call, const Matrix& hidden, const GemmOperand& activated);

  Parameter in_bias_;
  std::unique_ptr<SavedMatrix> hidden_;  // the activation's input
  // With code_bits: codes of the derivative, in place of hidden_.
  LayerLayout::Field codes_ = LayerLayout::none;
  bool activation_is_fused_ = false;
};

FfnBranch::FfnBranch(const LayerContext& context, LayerLayout& layout, int64_t layer, const UnitTensors& tensors)
    : LinearBranch(context, layout,
                   {.layer = static_cast<uint32_t>(layer),
                    .site = 1,
                    .norm = norm_tensors(tensors, "norm2"),
                    .norm_after = norm_tensors(tensors, "norm2_after")}),
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
  // Products that compute the activation cannot write codes of its derivative.
  activation_is_fused_ = !layout.saves_products() && code_bits() == 0 && in_->fuses(activation(), width()) &&
                         out_->fuses(activation(), width());
  if (code_bits() != 0) {
    codes_ = layout.save({"ffn.codes", DType::u8, context.shape.rows(), code_bytes(width(), code_bits())});
  } else {
    hidden_ = make_saved_matrix(
        context, layout, layout.save_product({"ffn.hidden", context.compute(), context.shape.rows(), hidden_width()}));
  }
}

TensorRows::Ticket FfnBranch::run(const LayerCall& call, const NormInput& in, const Output& out) {
  WorkspaceFrame frame(*call.workspace);
  const GemmOperand activated = activated_buffer(call, frame, true);
  const Matrix hidden =
      hidden_ ? hidden_->buffer(call, frame) : frame.take(context_.compute(), context_.shape.rows(), hidden_width());
  if (activation_is_fused_) {
    begin_forward(call, in, {.y = activated.x, .pre_activation = hidden});
  } else {
    begin_forward(call, in, {.y = hidden, .with_bias = false});
    activate(call, hidden, activated);
  }
  if (hidden_) hidden_->keep(call, hidden);
  return end_forward(call, activated, out);
}

void FfnBranch::recompute_core(const LayerCall& call) {
  WorkspaceFrame frame(*call.workspace);
  const GemmOperand activated = activated_buffer(call, frame, false);
  activate(call, hidden_->read(call, frame), activated);
  out_->keep_input(call, activated);
}

void FfnBranch::activate(const LayerCall& call, const Matrix& hidden, const GemmOperand& activated) {
  context_.backend.run(ActivationForward{.kind = activation(),
                                         .x = hidden,
                                         .bias = bias(call),
                                         .y = activated.x,
                                         .amax = activated.amax,
                                         .code_bits = code_bits(),
                                         .codes = codes(call),
                                         .fp8 = activated.fp8});
}

GemmOperand FfnBranch::core_backward(const LayerCall& call, const GemmOperand& d_branch, WorkspaceFrame& frame) {
  const Matrix hidden = hidden_ ? hidden_->read(call, frame) : Matrix();
  const GemmOperand d_hidden =
      code_bits() == 0 ? in_->quantized_gradient_buffer(call, frame) : in_->output_gradient_buffer(call, frame);
  if (activation_is_fused_) {
    out_->backward_input(call, d_branch, d_hidden.x, hidden);
  } else {
    WorkspaceFrame inner(*call.workspace);
    const Matrix d_activated = inner.take(context_.compute(), context_.tensor.all_rows(), width());
    out_->backward_input(call, d_branch, d_activated);
    context_.backend.run(ActivationBackward{.kind = activation(),
                                            .x = hidden,
                                            .bias = hidden_ ? bias(call) : Matrix(),
                                            .dy = d_activated,
                                            .dx = d_hidden.x,
                                            .amax = d_hidden.amax,
                                            .code_bits = code_bits(),
                                            .codes = codes(call),
                                            .fp8 = d_hidden.fp8});
  }
  return d_hidden;
}

}  // namespace

std::unique_ptr<Branch> make_ffn_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                        const UnitTensors& tensors) {
  return std::make_unique<FfnBranch>(context, layout, layer, tensors);
}

}  // namespace gptrain::model
