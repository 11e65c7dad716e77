// A branch of a block: norm, what it computes of the normed residual stream, and a last linear whose output is added to
// the stream: x + branch(norm(x)).
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
  virtual void prepare_weights(const LayerCall& call) = 0;
  // Computes this rank's part of the branch for all rows into `part`, [N, h] C. Without `part` it only fills the
  // records. `part` may lie where `in.branch` does.
  virtual void forward(const LayerCall& call, const NormInput& in, const Matrix& part) = 0;
  // Runs everything but the products again: fills the saved records from what was kept and from the stream that entered
  // the branch.
  virtual void recompute(const LayerCall& call, const Matrix& x) = 0;
  virtual void backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights) = 0;
  // `d_out`: of the stream, where weight_reads_output_gradient.
  virtual void backward_weight(const LayerCall& call, const Matrix& d_out) = 0;

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
  // The gradient of the last linear's output, all rows, from that of the stream.
  Factor branch_gradient(const LayerCall& call, const Factor& d_out, WorkspaceFrame& frame);

  const LayerContext& context_;
  LayerLayout& layout_;
  const uint32_t layer_;
  Norm norm_;
  std::unique_ptr<Linear> out_;  // the last one

 private:
  const uint32_t site_;
};

std::unique_ptr<Branch> make_attention_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                              const UnitTensors& tensors);
std::unique_ptr<Branch> make_ffn_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                        const UnitTensors& tensors);

}  // namespace gptrain
