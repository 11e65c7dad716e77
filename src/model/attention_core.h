// The middle of the attention branch: attention's output from queries, keys and values, for a rank's rows and heads.
#pragma once

#include <cstdint>
#include <memory>

#include "model/gradient_sums.h"
#include "model/layer.h"

namespace gptrain::inline model {

// Operands of attention, or the column ranges of a fused [N, q + 2 kv] matrix.
struct QueryKeyValue {
  Matrix q, k, v;
};

// Numbers of heads of queries, and of keys and values.
struct HeadCounts {
  int64_t queries, keys;
};

// RETURNS the numbers of heads that a tensor rank holds.
HeadCounts tensor_rank_heads(const LayerContext& context);

// RETURNS the numbers of heads for which a rank runs the attention ops: all of its tensor rank, or its share of them if
// context ranks exchange tokens for heads.
HeadCounts attention_heads(const LayerContext& context);

class AttentionCore {
 public:
  // Parts of the branch.
  struct Design {
    int64_t layer;
    Parameter sinks;
    const GradientSums& head_sums;  // has the sums of the sinks' gradients (summed_sinks)
    size_t sinks_sum;               // index of the sinks in head_sums
  };

  virtual ~AttentionCore() = default;
  AttentionCore(const AttentionCore&) = delete;
  AttentionCore& operator=(const AttentionCore&) = delete;

  // Computes o, [N, q], from the operands of this rank's rows, and saves the data for backward.
  virtual void forward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o) = 0;
  // Computes d_in from d_o, the gradient of o. `in` and `o` are those of forward; `in` is not given unless
  // reads_operands.
  virtual void backward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o, const Matrix& d_o,
                        const QueryKeyValue& d_in) = 0;
  // RETURNS whether backward reads the operands of forward, so that the branch must save them.
  virtual bool reads_operands() const = 0;

 protected:
  AttentionCore(const LayerContext& context, LayerLayout& layout, const Design& design);

  // RETURN the ops of this rank's heads on rows of whole sequences.
  AttentionForward forward_op(const LayerCall& call, const QueryKeyValue& in, const Matrix& o) const;
  AttentionBackward backward_op(const LayerCall& call, const QueryKeyValue& in, const Matrix& o, const Matrix& d_o,
                                const QueryKeyValue& d_in) const;
  // Run these ops.
  void run_forward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o) const;
  void run_backward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o, const Matrix& d_o,
                    const QueryKeyValue& d_in) const;

  const ModelConfig& model() const { return context_.shape.model; }

  const LayerContext& context_;
  const LayerLayout& layout_;
  const HeadCounts heads_;

 private:
  Dropout dropout(const LayerCall& call) const;
  AttentionMask mask(const LayerCall& call) const;
  // RETURNS the sinks of these heads; not given if the model has none.
  Matrix sinks(const LayerCall& call) const;
  // RETURNS the elements of these heads in the statistic of head scores; not given if it is not collected.
  Matrix largest_scores(const LayerCall& call) const;

  const Design design_;
  const int64_t first_head_;
  LayerLayout::Field lse_ = LayerLayout::none;
};

// RETURNS the sums of gradients of the sinks that the core computes: one sum, for the rank's attention_heads; in ring
// attention two sums for each sequence of the micro-batch, one for each run of the rank's queries.
SummedParameter summed_sinks(const LayerContext& context, const Parameter& sinks);

// RETURNS the core of a rank that has whole sequences, or parts of them (StepShape::context). REQUIRES: context and
// layout outlive it; it is made before layout.finish().
std::unique_ptr<AttentionCore> make_attention_core(const LayerContext& context, LayerLayout& layout,
                                                   const AttentionCore::Design& design);
// RETURN the cores of a rank with parts of sequences: attention by heads exchanges tokens for heads by all-to-alls
// (DeepSpeed-Ulysses); ring attention passes keys and values from rank to rank. Both use the lane of ContextParallel,
// so all ranks that share sequences call forward and backward in the same order.
std::unique_ptr<AttentionCore> make_attention_by_heads(const LayerContext& context, LayerLayout& layout,
                                                       const AttentionCore::Design& design);
std::unique_ptr<AttentionCore> make_ring_attention(const LayerContext& context, LayerLayout& layout,
                                                   const AttentionCore::Design& design);

}  // namespace gptrain::model
