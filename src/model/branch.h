// A branch of a block: a norm, and attention or an FFN; with model.norm_after a norm again. The stream is added:
// x + branch(norm(x)).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

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
  virtual bool weight_reads_output_gradient() const = 0;
  virtual bool wants_output_gradient_amax() const { return false; }

  // Quantizes weights to FP8 if call.prepare_weights.
  virtual void prepare_weights(const LayerCall& /*call*/) {}
  // RETURNS the branch for this rank's rows, in `part`, [N, h] C, or in `frame`. Without `with_output`, only fills the
  // records. `part` may alias `in.branch`.
  Matrix forward(const LayerCall& call, const NormInput& in, const Matrix& part, bool with_output,
                 WorkspaceFrame& frame);
  // Fills the saved records from the `saved_for_recompute` record and from `x`, the stream before the branch. REQUIRES:
  // the layer keeps products, or this is its attention branch and it keeps attention.
  virtual void recompute(const LayerCall& call, const Matrix& x) = 0;
  virtual void backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights) = 0;
  // `d_out`: gradient of the stream after the branch, used if weight_reads_output_gradient.
  virtual void backward_weight(const LayerCall& call, const Matrix& d_out) = 0;

 protected:
  struct Design {
    uint32_t layer;  // number in the model
    uint32_t site;   // number of the dropout site in the block, part of the random numbers' key
    NormTensors norm;
    NormTensors norm_after;                              // without gamma: there is none
    Norm::Save save_after = &LayerLayout::save_product;  // for the input and the statistics of norm_after
  };
  static NormTensors norm_tensors(const UnitTensors& tensors, const std::string& name) {
    return {name, tensors.find(name + ".weight"), tensors.find(name + ".bias")};
  }
  Branch(const LayerContext& context, LayerLayout& layout, const Design& design);

  // RETURNS whether the branch's gradient differs from the stream's (by a norm after it, dropout or dtype).
  static bool gradient_differs(const LayerContext& context);
  // RETURNS whether the branch uses the stream's gradient unchanged.
  static bool shares_gradient(const LayerContext& context);
  // Outputs of `run`.
  struct Output {
    Matrix part;      // [N, h] C: this rank's part of the branch; not given: only the records are filled
    Matrix sum = {};  // given if sums_in_pieces: memory for this rank's rows of the sum, which `run` then begins
  };
  // Computes the outputs. RETURNS the ticket of the sum's last piece.
  virtual TensorRows::Ticket run(const LayerCall& call, const NormInput& in, const Output& out) = 0;
  // RETURNS whether the branch sums its part over the tensor ranks itself (Linear::exchanges_pieces).
  virtual bool sums_in_pieces() const { return false; }
  // RETURNS the gradient of the branch's output, all rows, from the stream's. If shares_gradient is false, it is
  // computed into `whole`. With `in_pieces`, a linear gathers the other ranks' rows (GemmOperand::own).
  GemmOperand branch_gradient(const LayerCall& call, const GemmOperand& d_out, const GemmOperand& whole,
                              bool in_pieces = false);
  virtual void add_norm_gradients(const LayerCall& call);

  const LayerContext& context_;
  LayerLayout& layout_;
  const uint32_t layer_;
  Norm norm_;

 private:
  // RETURNS whether the branch's gradient is the stream's in another dtype, or with dropout.
  static bool stream_differs(const LayerContext& context);
  // Computes this rank's rows of the gradient of the branch's output into `to`, from the stream's.
  void differentiate_output(const LayerCall& call, const Matrix& d_out, const GemmOperand& to);

  const uint32_t site_;
  std::unique_ptr<Norm> after_;           // null: no norm after the branch
  std::unique_ptr<SavedMatrix> after_x_;  // input of that norm
};

std::unique_ptr<Branch> make_attention_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                              const UnitTensors& tensors);
std::unique_ptr<Branch> make_ffn_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                        const UnitTensors& tensors);
// Makes an FFN whose tokens are routed to experts.
std::unique_ptr<Branch> make_routed_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                           const UnitTensors& tensors);

}  // namespace gptrain::model
