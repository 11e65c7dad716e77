// A branch of a block: norm, a first linear, a core (attention or an activation), and a last linear whose output is
// added to the stream: x + branch(norm(x)).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/linear.h"
#include "model/norm.h"

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
  // Computes this rank's part of the branch for all rows into `part`, [N, h] C. If `part` is not given, only fills the
  // records. `part` may alias `in.branch`.
  virtual void forward(const LayerCall& call, const NormInput& in, const Matrix& part) = 0;
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
    Parameter norm, norm_bias;
    std::string norm_name;
  };
  Branch(const LayerContext& context, LayerLayout& layout, const Design& design);

  // RETURNS whether the branch's gradient differs from the stream's (by dropout or dtype).
  static bool gradient_differs(const LayerContext& context);
  // RETURNS whether the last linear uses the stream's gradient unchanged.
  static bool shares_gradient(const LayerContext& context);
  // Runs the norm and the first linear.
  void begin_forward(const LayerCall& call, const NormInput& in, const LinearOutput& out);
  // Runs the last linear on the core's output `x`. If `part` is not given, only saves the data for its backward pass.
  void end_forward(const LayerCall& call, const GemmOperand& x, const Matrix& part);
  // Fills the records of the core and the last linear from the saved data.
  virtual void recompute_core(const LayerCall& call) = 0;
  // RETURNS the gradient of the first linear's output, in `frame`, from that of the last linear's output.
  virtual GemmOperand core_backward(const LayerCall& call, const GemmOperand& d_branch, WorkspaceFrame& frame) = 0;
  // Adds the gradients of norms.
  virtual void add_norm_gradients(const LayerCall& call) { norm_.backward_weight(call); }

  const LayerContext& context_;
  LayerLayout& layout_;
  const uint32_t layer_;
  Norm norm_;
  std::unique_ptr<Linear> in_, out_;  // the first and the last linear

 private:
  // RETURNS the gradient of the last linear's output, all rows, from the stream's.
  GemmOperand branch_gradient(const LayerCall& call, const GemmOperand& d_out, WorkspaceFrame& frame);

  const uint32_t site_;
};

std::unique_ptr<Branch> make_attention_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                              const UnitTensors& tensors);
std::unique_ptr<Branch> make_ffn_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                        const UnitTensors& tensors);

}  // namespace gptrain::model
