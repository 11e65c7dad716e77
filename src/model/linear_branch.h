// A branch of a first linear, a core (attention or an activation), and a last linear.
#pragma once

#include <memory>

#include "model/branch.h"
#include "model/linear.h"

namespace gptrain::inline model {

class LinearBranch : public Branch {
 public:
  bool weight_reads_output_gradient() const override { return out_->weight_reads_shared_gradient(); }
  bool wants_output_gradient_amax() const override { return out_->wants_amax() && !gradient_differs(context_); }

  void prepare_weights(const LayerCall& call) override;
  void recompute(const LayerCall& call, const Matrix& x) override;
  void backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights) override;
  void backward_weight(const LayerCall& call, const Matrix& d_out) override;

 protected:
  using Branch::Branch;

  // Runs the norm and the first linear.
  void begin_forward(const LayerCall& call, const NormInput& in, const LinearOutput& out);
  bool sums_in_pieces() const override { return out_->exchanges_pieces(); }
  // Runs the last linear on the core's output `x`. If out.part is not given, saves the data for its backward pass
  // and computes nothing. RETURNS the ticket of the sum's last piece.
  TensorRows::Ticket end_forward(const LayerCall& call, const GemmOperand& x, const Output& out);
  // Fills the records of the core and the last linear from the saved data.
  virtual void recompute_core(const LayerCall& call) = 0;
  // RETURNS the gradient of the first linear's output, in `frame`, from that of the last linear's output.
  virtual GemmOperand core_backward(const LayerCall& call, const GemmOperand& d_branch, WorkspaceFrame& frame) = 0;

  std::unique_ptr<Linear> in_, out_;  // the first and the last linear
};

}  // namespace gptrain::model
