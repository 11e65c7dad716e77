// A linear of a layer, y = x w^T + b, over the tensor ranks: its three products, their collectives, and the data saved
// for W.
//
// A rank of a column-parallel linear holds some rows of w and computes the same columns of y. Its input comes from the
// residual stream; with sequence parallelism the ranks gather it. A rank of a row-parallel linear holds some columns of
// w. A row-parallel y and a column-parallel dx are parts of a sum over the tensor ranks, which the caller computes.
// Each kind has a version with FP8 products.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/layer.h"

namespace gptrain::inline model {

struct LinearDesign {
  std::string name;  // prefix of its saved tensors' names
  LinearSite site;
  uint32_t layer;  // number in the model
  Parameter weight, bias;
  bool row_parallel;
  // Field that another part of the layer declares and fills with the input; none: the caller computes the input in
  // input_buffer.
  LayerLayout::Field saved_input = LayerLayout::none;
  // True: the caller keeps the gradient of the output in a matrix of its own until W. False: the caller computes it in
  // output_gradient_buffer.
  bool gradient_is_shared = false;
};

// Outputs of forward. If pre_activation is given, y = gelu_tanh(pre_activation) (see LinearForward).
struct LinearOutput {
  Matrix y;  // [N, out]
  Matrix pre_activation = {};
  bool with_bias = true;  // false: a later op adds the bias; the linear still computes the bias' gradient
  // Memory for this rank's rows of the sum of y over the tensor ranks, if the linear begins that sum piece by piece; y
  // then has rows in the order of the pieces (sum_in_pieces).
  Matrix sum = {};
};

class Linear {
 public:
  virtual ~Linear() = default;
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  // RETURN memory, in a record or in `frame`, into which the caller computes the input, or the gradient of the output.
  // input_buffer has this rank's rows of the input, output_gradient_buffer has all rows.
  // If it includes an amax, the op that computes the matrix may write it, and the caller then passes on both. Otherwise
  // the linear computes the amax itself.
  virtual GemmOperand input_buffer(const LayerCall& call, WorkspaceFrame& frame) const = 0;
  virtual GemmOperand output_gradient_buffer(const LayerCall& call, WorkspaceFrame& frame) const = 0;
  // RETURN the same for an op that can write FP8 copies in the matrix' place: memory for these copies
  // (GemmOperand::fp8) if the linear knows their scale and needs no more. `for_product`: the input is for `forward`.
  virtual GemmOperand quantized_input_buffer(const LayerCall& call, WorkspaceFrame& frame, bool for_product) const;
  virtual GemmOperand quantized_gradient_buffer(const LayerCall& call, WorkspaceFrame& frame) const;
  // RETURNS whether the linear needs the amax of its input and of its output's gradient (FP8 products do).
  virtual bool wants_amax() const = 0;
  // RETURNS whether backward_weight reads `shared_gradient`, so that the caller must keep it until then. False without
  // LinearDesign::gradient_is_shared, and if backward_input saves the gradient in FP8.
  virtual bool weight_reads_shared_gradient() const = 0;
  // RETURNS whether the product's epilogue can compute the activation: in the forward pass of the linear before it, or
  // its gradient in the backward pass of the linear after it. `width`: elements of a row of the activation on this
  // rank.
  virtual bool fuses(ActivationKind kind, int64_t width) const = 0;
  // RETURNS whether the linear alternates products with the exchange of their rows: whether `forward` takes
  // LinearOutput::sum, and backward_input a gradient of which it gathers the rows (GemmOperand::own).
  virtual bool exchanges_pieces() const { return false; }

  // Quantizes the weight to FP8 if call.prepare_weights. REQUIRES: called before every pass. Collective over the tensor
  // ranks if it quantizes.
  virtual void prepare_weight(const LayerCall& call) = 0;
  // Computes y, or this rank's part of the sum, and saves the input for W (see keep_input). Collective over the tensor
  // ranks if a column-parallel linear gathers their rows of x (sequence parallelism), or if a linear with FP8 has only
  // a part of the input. RETURNS the ticket of out.sum's last piece; Lane::done if that is not given.
  virtual TensorRows::Ticket forward(const LayerCall& call, const GemmOperand& x, const LinearOutput& out) = 0;
  // Saves the input for W without computing y, as recompute needs it. A plain linear with LinearDesign::saved_input has
  // nothing to save. Collective as `forward` is.
  virtual void keep_input(const LayerCall& call, const GemmOperand& x) = 0;
  // Computes dx = dy w, or this rank's part of the sum, times the activation's derivative if pre_activation is given.
  // REQUIRES: dy lies in output_gradient_buffer, unless gradient_is_shared, as backward_weight reads it later. Linears
  // with FP8 products save dy themselves. Collective over the tensor ranks if a linear with FP8 has only a part of dy.
  virtual void backward_input(const LayerCall& call, const GemmOperand& dy, const Matrix& dx,
                              const Matrix& pre_activation = {}) = 0;
  // Begins to gather the other ranks' rows of the saved input for backward_weight; with all rows saved, there is
  // nothing to gather. Memory is taken from `frame`, which must live until backward_weight has been called. Collective
  // over the tensor ranks with sequence parallelism.
  virtual TensorRows::Gathering begin_weight(const LayerCall& call, WorkspaceFrame& frame) = 0;
  // Computes the gradients of weight and bias, or adds them to the present ones if call.accumulate. `input`: the result
  // of begin_weight. `shared_gradient`: the output's gradient, if weight_reads_shared_gradient().
  virtual void backward_weight(const LayerCall& call, const TensorRows::Gathering& input,
                               const Matrix& shared_gradient = {}) = 0;

 protected:
  Linear() = default;
};

// RETURN a linear, and declare its saved tensors in `layout`. REQUIRES: context and layout outlive it. Layers call
// make_linear, which chooses one of the others if the precision (StepShape::precision) asks for FP8 products.
std::unique_ptr<Linear> make_linear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design);
// Makes a linear with three FP8 products.
std::unique_ptr<Linear> make_fp8_linear(const LayerContext& context, LayerLayout& layout, const LinearDesign& design);
// Makes a linear that uses FP8 for the gradient of the weight only.
std::unique_ptr<Linear> make_fp8_weight_linear(const LayerContext& context, LayerLayout& layout,
                                               const LinearDesign& design);

}  // namespace gptrain::model
