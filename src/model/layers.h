// The kinds of layers. REQUIRES: the context outlives the layer.
#pragma once

#include <cstdint>
#include <memory>

#include "model/branch.h"
#include "model/layer.h"
#include "model/saved_matrix.h"

namespace gptrain::inline model {

// Token and position tables. Saves nothing; its backward pass is W only.
class Embedding final : public Layer {
 public:
  Embedding(const LayerContext& context, const UnitTensors& tensors);

  void forward(const LayerCall& call) override;
  void recompute(const LayerCall& call) override;
  void backward(const LayerCall& call, BackwardPart part) override;

 private:
  Dropout dropout(const LayerCall& call) const;
  int64_t first_token() const { return context_.tensor.rank() * tokens_.rows; }
  // 0: the rank holds the whole table.
  int64_t num_tokens() const { return context_.tensor.is_split() ? context_.tensor.size() * tokens_.rows : 0; }

  Parameter tokens_, positions_;
};

// x -> mid = x + attention(norm1(x)) -> output = mid + ffn(norm2(mid)).
class Block final : public Layer {
 public:
  // `layer`: number in the model. `gives_amax`: the layer before reads the amax of the gradient of this block's input.
  Block(const LayerContext& context, int64_t layer, const UnitTensors& tensors, bool gives_amax);

  void forward(const LayerCall& call) override;
  void recompute(const LayerCall& call) override;
  void backward(const LayerCall& call, BackwardPart part) override;
  bool exchanges_amid_ops() const override {
    return Layer::exchanges_amid_ops() || context_.context.is_split() ||
           (design_.is_routed && context_.experts.is_split());
  }

 private:
  void backward_input(const LayerCall& call, bool with_weights);
  void backward_weight(const LayerCall& call);
  void prepare_weights(const LayerCall& call);
  // Runs both branches. RETURNS the FFN branch for this rank's rows, [N, h] C; without with_output it only fills the
  // records, and the result is undefined. `mid`: memory for the stream between the branches.
  Matrix run_branches(const LayerCall& call, WorkspaceFrame& frame, const Matrix& mid, bool with_output);

  std::unique_ptr<Branch> attention_, ffn_;
  std::unique_ptr<SavedMatrix> mid_;              // the stream between the branches
  std::unique_ptr<SavedMatrix> input_;            // codes of the block's input; null if B reads the input itself
  LayerLayout::Field d_mid_ = LayerLayout::none;  // gradient of the stream between the branches, if W reads it
};

// Final norm, output projection and loss. Logits exist for one chunk of rows at a time. The loss' scale is known
// beforehand, so a chunk's gradients are computed right after its logits. Each tensor rank has only the logits of its
// slice of the vocabulary.
class Head final : public Layer {
 public:
  // `matrix`: the projection's parameter in the unit that holds it (see LayerCall::head_matrix).
  Head(const LayerContext& context, const UnitTensors& tensors, const Parameter& matrix, bool gives_amax);

  void forward(const LayerCall& call) override;  // the norm only
  void recompute(const LayerCall& call) override;
  // Adds the losses to state->loss_sum, fills the `gradients` record and computes the matrix' gradient, so that no
  // logits are saved for W.
  void loss(const LayerCall& call);
  void evaluate(const LayerCall& call);  // only adds the losses to state->loss_sum
  // Computes the logits of one row in the compute dtype. The caller applies model.logit_softcap. `out`: [1, Vp], or the
  // tensor rank's slice of it.
  void logits(const LayerCall& call, int64_t row, const Matrix& out);
  void backward(const LayerCall& call, BackwardPart part) override;

 private:
  void backward_input(const LayerCall& call);
  // Computes logits and losses chunk by chunk; if d_norm is given, also the gradients of the norm's output and of the
  // matrix.
  void sum_losses(const LayerCall& call, const Matrix& d_norm);
  // Computes the losses of a chunk that begins at row `first`. with_gradient: replaces the logits by their gradients.
  void cross_entropy(const LayerCall& call, int64_t first, const Matrix& logits, bool with_gradient,
                     const Matrix& losses);
  Matrix matrix(const LayerCall& call) const { return matrix_.in(call.head_matrix.weights, context_.compute()); }
  // RETURN the first token of this rank's slice of the vocabulary, and the slice's number of tokens without padding.
  int64_t first_token() const { return context_.tensor.rank() * matrix_.rows; }
  int64_t true_tokens() const;

  Norm norm_;
  Parameter matrix_;
  LayerLayout::Field normed_, d_normed_;
};

}  // namespace gptrain::model
