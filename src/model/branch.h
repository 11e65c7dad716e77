// A branch of a block: norm, a first linear, a core (attention or an activation), and a last linear, with
// model.norm_after a norm again. The stream is added: x + branch(norm(x)).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/linear.h"
#include "model/norm.h"
#include "model/saved_matrix.h"

namespace gptrain::inline model {

// Operands of a branch's backward pass.
struct BranchGradient {
  GemmOperand d_out;  // [N, h] R: gradient of the stream after the branch, with its amax if the branch wants it
  Matrix x;           // stream before the branch
  GemmOperand dx;     // [N, h] R, out: gradient of the stream before the branch
};

class Branch {
 public:
  virtual ~Branch() = default;
  Branch(const Branch&) = delete;
  Branch& operator=(const Branch&) = delete;

  // RETURNS the dropout applied to the branch's output when it is added to the stream.
  Dropout dropout(const LayerCall& call) const;
  // RETURNS whether W reads the gradient of the stream after the branch.
  bool weight_reads_output_gradient() const { return out_->weight_reads_shared_gradient(); }
  bool wants_output_gradient_amax() const { return out_->wants_amax() && !gradient_differs(context_); }

  // Fills the FP8 copies of weights if call.prepare_weights.
  void prepare_weights(const LayerCall& call);
  // RETURNS the branch for this rank's rows, in `part`, [N, h] C, or in `frame`. Without `with_output`, only fills the
  // records. `part` may alias `in.branch`.
  Matrix forward(const LayerCall& call, const NormInput& in, const Matrix& part, bool with_output,
                 WorkspaceFrame& frame);
  // Runs everything but the products again: fills the saved records from the `kept` record and from `x`, the stream
  // before the branch.
  void recompute(const LayerCall& call, const Matrix& x);
  void backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights);
  // `d_out`: gradient of the stream after the branch, used if weight_reads_output_gradient.
  void backward_weight(const LayerCall& call, const Matrix& d_out);

 protected:
  struct Design {
    uint32_t layer;  // number in the model
    uint32_t site;   // number of the dropout site in the block, part of the random numbers' key
    NormTensors norm;
    NormTensors norm_after;  // without gamma: there is none
  };
  static NormTensors norm_tensors(const UnitTensors& tensors, const std::string& name) {
    return {name, tensors.find(name + ".weight"), tensors.find(name + ".bias")};
  }
  Branch(const LayerContext& context, LayerLayout& layout, const Design& design);

  // RETURNS whether the branch's gradient differs from the stream's (by a norm after it, dropout or dtype).
  static bool gradient_differs(const LayerContext& context);
  // RETURNS whether the last linear uses the stream's gradient unchanged.
  static bool shares_gradient(const LayerContext& context);
  // Computes this rank's part of the last linear for all rows into `part`. If `part` is not given, only fills the
  // records.
  virtual void run(const LayerCall& call, const NormInput& in, const Matrix& part) = 0;
  // Runs the norm and the first linear.
  void begin_forward(const LayerCall& call, const NormInput& in, const LinearOutput& out);
  // Runs the last linear on the core's output `x`. If `part` is not given, only saves the data for its backward pass.
  void end_forward(const LayerCall& call, const GemmOperand& x, const Matrix& part);
  // Fills the records of the core and the last linear from the saved data.
  virtual void recompute_core(const LayerCall& call) = 0;
  // RETURNS the gradient of the first linear's output, in `frame`, from that of the last linear's output.
  virtual GemmOperand core_backward(const LayerCall& call, const GemmOperand& d_branch, WorkspaceFrame& frame) = 0;
  virtual void add_norm_gradients(const LayerCall& call);

  const LayerContext& context_;
  LayerLayout& layout_;
  const uint32_t layer_;
  Norm norm_;
  std::unique_ptr<Linear> in_, out_;  // the first and the last linear

 private:
  // RETURNS whether the branch's gradient is the stream's in another dtype, or with dropout.
  static bool stream_differs(const LayerContext& context);
  // RETURNS the gradient of the last linear's output, all rows, from the stream's.
  GemmOperand branch_gradient(const LayerCall& call, const GemmOperand& d_out, WorkspaceFrame& frame);
  // Computes this rank's rows of the gradient of the last linear's output into `to`, from the stream's.
  void differentiate_output(const LayerCall& call, const Matrix& d_out, const GemmOperand& to);

  const uint32_t site_;
  std::unique_ptr<Norm> after_;           // null: no norm after the branch
  std::unique_ptr<SavedMatrix> after_x_;  // input of that norm
};

std::unique_ptr<Branch> make_attention_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                              const UnitTensors& tensors);
std::unique_ptr<Branch> make_ffn_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                        const UnitTensors& tensors);

}  // namespace gptrain::model
