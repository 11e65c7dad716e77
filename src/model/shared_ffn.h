// The shared experts of a mixture: an FFN that all tokens pass through, whose result a gate may scale for each token.
#pragma once

#include <cstdint>
#include <memory>

#include "model/linear.h"

namespace gptrain::inline model {

// The gate is a sigmoid of a product of the token with a vector, in f32 as a router's. It scales the activation, which
// the last linear, without a bias, takes as it would take a scaled result.
class SharedFfn {
 public:
  // `x`: field of the normed rows.
  SharedFfn(const LayerContext& context, LayerLayout& layout, uint32_t layer, const UnitTensors& tensors,
            LayerLayout::Field x);

  bool has_gate() const { return gate_.given(); }
  // Multiplies the rows, [N, h] f32, by the gate's vector, and saves the products. REQUIRES: has_gate; call before
  // forward.
  void multiply_gate(const LayerCall& call, const Matrix& rows) const;
  void forward(const LayerCall& call, const Matrix& normed, const Matrix& part);
  // Computes the activation from the saved data, saves it, and computes this rank's part of the output if `part` is
  // given.
  void activate(const LayerCall& call, const Matrix& part);
  // Computes this rank's part of the gradient of the normed rows, except for the gate's.
  void backward_input(const LayerCall& call, const Matrix& d_branch, const Matrix& part);
  // Adds the gate's part to `d_rows`, [N, h] f32. REQUIRES: has_gate; call after backward_input.
  void add_gate_gradient(const LayerCall& call, const Matrix& d_rows) const;
  void backward_weight(const LayerCall& call, const Matrix& d_branch);
  // `rows`: as in multiply_gate. REQUIRES: has_gate.
  void gate_weight_gradient(const LayerCall& call, const Matrix& rows) const;

 private:
  struct Gates {
    Matrix weights, offsets;
  };
  // RETURNS the gate's factor of each row, in `frame`.
  Gates gates(const LayerCall& call, WorkspaceFrame& frame) const;
  ActivationKind kind() const { return context_.shape.model.activation; }
  // RETURNS the rows of the gate's matrix that this rank counts in model FLOPs, as all tensor ranks have all rows.
  int64_t counted_gates() const { return context_.tensor.rank() == 0 ? -1 : 0; }

  const LayerContext& context_;
  const LayerLayout& layout_;
  const Parameter bias_, gate_;
  int64_t width_ = 0;
  std::unique_ptr<Linear> in_, out_;
  LayerLayout::Field hidden_ = LayerLayout::none;
  LayerLayout::Field gate_logits_ = LayerLayout::none, d_gate_ = LayerLayout::none;
};

}  // namespace gptrain::model
