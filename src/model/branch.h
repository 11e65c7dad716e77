// A branch of a block: norm, what it computes of the normed residual stream, and a last linear whose output is added to
// the stream: x + branch(norm(x)).
#pragma once

#include <memory>
#include <string>

#include "model/linear.h"
#include "model/norm.h"

namespace gptrain {

// The gradients around a branch: of the stream behind it, which comes in, and before it, which goes out.
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

  // Copies of weights that the call asks for.
  virtual void prepare_weights(const LayerCall& call) = 0;
  // This rank's part of the branch, [N, h] C, of all rows; not given: only fills the records. `part` may be where
  // `in.branch` is.
  virtual void forward(const LayerCall& call, const NormInput& in, const Matrix& part) = 0;
  // Fills the records but for what is kept, from that and the stream that entered the branch: everything but products.
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
