// A branch of a block: norm, a first linear, a core (attention or an activation), and a last linear whose output is
// added to the stream: x + branch(norm(x)).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/linear.h"
#include "model/norm.h"

namespace gptrain {

// The gradients around a branch. The one of the stream behind the branch comes in; the one before it goes out.
struct BranchGradient {
  Factor d_out;  // [N, h] R; with its amax where the branch wants that
  Matrix x;      // the stream that entered the branch
  Factor dx;     // [N, h] R, out
};

class Branch {
 public:
  virtual ~Branch() = default;
  Branch(const Branch&) = delete;
  Branch& operator=(const Branch&) = delete;

  // Of the branch's output, where it is added to the stream.
  Dropout dropout(const LayerCall& call) const;
  // W reads the gradient of the stream behind the branch.
  bool weight_reads_output_gradient() const { return out_->weight_reads_shared_gradient(); }
  bool wants_output_gradient_amax() const { return out_->wants_amax() && !gradient_differs(context_); }

  // Makes the copies of weights if the call asks for them.
  void prepare_weights(const LayerCall& call);
  // Computes this rank's part of the branch for all rows into `part`, [N, h] C. Without `part` it only fills the
  // records. `part` may lie where `in.branch` does.
  virtual void forward(const LayerCall& call, const NormInput& in, const Matrix& part) = 0;
  // Runs everything but the products again: fills the saved records from what was kept and from the stream that entered
  // the branch.
  void recompute(const LayerCall& call, const Matrix& x);
  void backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights);
  // `d_out`: of the stream, where weight_reads_output_gradient.
  void backward_weight(const LayerCall& call, const Matrix& d_out);

 protected:
  struct Design {
    uint32_t layer;  // of the model
    uint32_t site;   // of the block: random numbers differ
    Parameter norm, norm_bias;
    std::string norm_name;
  };
  Branch(const LayerContext& context, LayerLayout& layout, const Design& design);

  // Whether the gradient of the branch differs from that of the stream (dropout, or another dtype).
  static bool gradient_differs(const LayerContext& context);
  // Whether the last linear takes the stream's gradient as it is.
  static bool shares_gradient(const LayerContext& context);
  // Norm and first linear.
  void begin_forward(const LayerCall& call, const NormInput& in, const LinearOutput& out);
  // Runs the last linear on the core's output `x`. Without `part` it only saves the data that its backward pass needs.
  void end_forward(const LayerCall& call, const Factor& x, const Matrix& part);
  // Fills the records of the core and the last linear from the saved data.
  virtual void recompute_core(const LayerCall& call) = 0;
  // From the gradient of the last linear's output to that of the first one's, in `frame`.
  virtual Factor core_backward(const LayerCall& call, const Factor& d_branch, WorkspaceFrame& frame) = 0;
  // The gradients of norms.
  virtual void add_norm_gradients(const LayerCall& call) { norm_.backward_weight(call); }

  const LayerContext& context_;
  LayerLayout& layout_;
  const uint32_t layer_;
  Norm norm_;
  std::unique_ptr<Linear> in_, out_;  // the first and the last linear

 private:
  // The gradient of the last linear's output, all rows, from that of the stream.
  Factor branch_gradient(const LayerCall& call, const Factor& d_out, WorkspaceFrame& frame);

  const uint32_t site_;
};

std::unique_ptr<Branch> make_attention_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                              const UnitTensors& tensors);
std::unique_ptr<Branch> make_ffn_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                        const UnitTensors& tensors);

}  // namespace gptrain
