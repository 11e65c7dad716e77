// The kinds of layers. Each is made from its unit of the spec and in a context that outlives it.
#pragma once

#include <cstdint>
#include <memory>

#include "model/branch.h"
#include "model/layer.h"
#include "model/saved_matrix.h"

namespace gptrain {

// Token and position tables. It saves nothing, and its backward pass is all W.
class Embedding final : public Layer {
 public:
  Embedding(const LayerContext& context, const UnitTensors& tensors);

  void forward(const LayerCall& call) override;
  void recompute(const LayerCall& call) override;
  void backward(const LayerCall& call, BackwardPart part) override;

 private:
  Dropout dropout(const LayerCall& call) const;
  int64_t first_token() const { return context_.tensor.rank() * tokens_.rows; }
  // 0 where the table is whole.
  int64_t num_tokens() const { return context_.tensor.is_split() ? context_.tensor.size() * tokens_.rows : 0; }

  Parameter tokens_, positions_;
};

// x -> mid = x + attention(norm1(x)) -> output = mid + ffn(norm2(mid)).
class Block final : public Layer {
 public:
  // `layer`: of the model. `gives_amax`: the layer before wants the amax of its d_output.
  Block(const LayerContext& context, int64_t layer, const UnitTensors& tensors, bool gives_amax);

  void forward(const LayerCall& call) override;
  void recompute(const LayerCall& call) override;
  void backward(const LayerCall& call, BackwardPart part) override;

 private:
  void backward_input(const LayerCall& call, bool with_weights);
  void backward_weight(const LayerCall& call);
  void prepare_weights(const LayerCall& call);
  // Both branches up to the FFN's part; without output only the records. `mid`: room for what is between both.
  Matrix run_branches(const LayerCall& call, WorkspaceFrame& frame, const Matrix& mid, bool with_output);

  std::unique_ptr<Branch> attention_, ffn_;
  std::unique_ptr<SavedMatrix> mid_;              // the stream between both branches
  std::unique_ptr<SavedMatrix> input_;            // the stream that enters, where B reads codes of it
  LayerLayout::Field d_mid_ = LayerLayout::none;  // its gradient, where W reads that
};

// Final norm, output projection and loss. Logits exist for one chunk of rows at a time; since the loss' scale is known
// beforehand, a chunk's gradients are taken while its logits are there. Over tensor ranks each has the logits of its
// slice of the vocabulary, and no rank all of them.
class Head final : public Layer {
 public:
  // `matrix`: of the projection, in the unit that holds it.
  Head(const LayerContext& context, const UnitTensors& tensors, const Parameter& matrix, bool gives_amax);

  void forward(const LayerCall& call) override;  // up to the norm
  void recompute(const LayerCall& call) override;
  // Adds to state->loss_sum; fills the gradients' record and makes the matrix' gradient, so that logits need not be
  // kept for W.
  void loss(const LayerCall& call);
  void evaluate(const LayerCall& call);  // adds to state->loss_sum only
  // Logits of one row, in C: out is [1, Vp], on a tensor rank its slice of them.
  void logits(const LayerCall& call, int64_t row, const Matrix& out);
  void backward(const LayerCall& call, BackwardPart part) override;

 private:
  void backward_input(const LayerCall& call);
  // Logits and losses chunk by chunk; with d_norm given also the gradients of the head's input and matrix.
  void sum_losses(const LayerCall& call, const Matrix& d_norm);
  // Losses of the rows from `first` on; with_gradient: logits become their gradients.
  void cross_entropy(const LayerCall& call, int64_t first, const Matrix& logits, bool with_gradient,
                     const Matrix& losses);
  Matrix matrix(const LayerCall& call) const { return matrix_.in(call.head_matrix.weights, context_.compute()); }
  // Of the vocabulary: the first token of this rank's slice, and how many true ones it has.
  int64_t first_token() const { return context_.tensor.rank() * matrix_.rows; }
  int64_t true_tokens() const;

  Norm norm_;
  Parameter matrix_;
  LayerLayout::Field normed_, d_normed_;
};

}  // namespace gptrain
