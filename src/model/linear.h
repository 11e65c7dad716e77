// A linear of a layer, y = x w^T + b, over the tensor ranks: its three products, the collectives around them, and what
// it keeps for W.
//
// Its kind is chosen once, in make_linear. A column-parallel linear has some rows of w and so some columns of y; its
// input is the residual stream's, and with sequence parallelism gathered. A row-parallel one has some columns of w, and
// its y and a column-parallel one's dx are parts of a sum over the ranks. Each kind has a version with FP8 products.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/layer.h"

namespace gptrain {

struct LinearDesign {
  std::string name;  // of what it saves
  LinearSite site;
  uint32_t layer;  // of the model
  Parameter weight, bias;
  bool row_parallel;
  // A field of the layer's records that holds the input anyway, which who declares it keeps; none: it is computed in
  // input_room.
  LayerLayout::Field saved_input = LayerLayout::none;
  // The gradient of the output is another matrix that the caller keeps until W; else it is computed in
  // output_gradient_room.
  bool gradient_is_shared = false;
};

// What forward writes. With a pre-activation y is gelu_tanh of it (see LinearForward).
struct LinearOutput {
  Matrix y;  // [N, out]
  Matrix pre_activation = {};
  bool with_bias = true;  // false: an op behind it adds the bias, whose gradient is the linear's all the same
};

class Linear {
 public:
  virtual ~Linear() = default;
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  // The memory that the caller computes the input into, or the gradient of the output: of a record, or of the frame. If
  // it comes with room for an amax, the op that computes the matrix may fill that, too, and the caller passes both on.
  // Otherwise the linear finds the amax itself.
  virtual Factor input_room(const LayerCall& call, WorkspaceFrame& frame) const = 0;
  virtual Factor output_gradient_room(const LayerCall& call, WorkspaceFrame& frame) const = 0;
  // Whether it needs the amax of its factors.
  virtual bool wants_amax() const = 0;
  // Whether backward_weight reads the shared gradient itself and keeps no copy of it.
  virtual bool weight_reads_shared_gradient() const = 0;
  // Whether the product can compute the activation that follows it, or, in the backward pass of the linear that follows
  // the activation, the activation's gradient.
  virtual bool fuses(ActivationKind kind, int64_t width) const = 0;

  // Makes the copies of the weight if the call asks for them. Called before every pass.
  virtual void prepare_weight(const LayerCall& call) = 0;
  // y, or this rank's part of it; keeps the input for W.
  virtual void forward(const LayerCall& call, const Factor& x, const LinearOutput& out) = 0;
  // Keeps the input for W and computes nothing.
  virtual void keep_input(const LayerCall& call, const Factor& x) = 0;
  // dx = dy w, or this rank's part of it, by the activation's derivative where a pre-activation is given; keeps dy for
  // W.
  virtual void backward_input(const LayerCall& call, const Factor& dy, const Matrix& dx,
                              const Matrix& pre_activation = {}) = 0;
  // Begins to gather what backward_weight reads of the other ranks.
  virtual TensorRows::Gathering begin_weight(const LayerCall& call, WorkspaceFrame& frame) = 0;
  // The gradients of weight and bias. `shared_gradient`: of the output, where that is shared.
  virtual void backward_weight(const LayerCall& call, const TensorRows::Gathering& input,
                               const Matrix& shared_gradient = {}) = 0;

 protected:
  Linear() = default;
};

// Declares what the linear keeps. Context and layout outlive it.
std::unique_ptr<Linear> make_linear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design);
std::unique_ptr<Linear> make_fp8_linear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design);
// With FP8 products for the gradient of the weight only.
std::unique_ptr<Linear> make_fp8_weight_linear(const LayerContext& context, LayerLayout& layout,
                                               const LinearDesign& design);

}  // namespace gptrain
