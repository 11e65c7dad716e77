// A layer of the model: the interface of embedding, blocks and head to a schedule.
//
// A layer owns no memory. Data that it keeps between passes lie in records that it declares; the caller owns all memory
// of a call. LayerRecords::use says which of a call's buffers each pass reads and writes. A schedule knows nothing else
// of a layer:
//
//                     reads                                                writes
//   forward           input                                                output, saved_for_recompute,
//                                                                          saved_for_input, saved_for_weight
//   recompute         input, saved_for_recompute                           saved_for_input, saved_for_weight
//   loss (head)       saved_for_input                                      gradients
//   backward_input    input, saved_for_recompute, saved_for_input,         gradients, d_input
//                     saved_for_weight, gradients (the head), d_output
//                     (not the head)
//   backward_weight   saved_for_weight, gradients, d_output (where an op of W reads it)
//
// Not every layer has all of these: the embedding has no input, saves nothing and has no backward_input; the head has
// neither output nor d_output. `saved_for_recompute` exists in blocks with a StepShape::saved_part only.
#pragma once

#include "model/layer_call.h"
#include "model/layer_context.h"
#include "model/layer_design.h"

namespace gptrain::inline model {

class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const LayerRecords& records() const { return design_.records; }
  // Layers of equal designs run equal ops on operands of equal shapes.
  const LayerDesign& design() const { return design_; }

  virtual void forward(const LayerCall& call) = 0;
  // Recomputes the saved records, with the same bits, from the input and the `saved_for_recompute` record. Does not
  // compute the output.
  virtual void recompute(const LayerCall& call) = 0;
  virtual void backward(const LayerCall& call, BackwardPart part) = 0;
  // Whether ranks communicate between the ops of a pass, which are then not recorded (Backend::run_recorded). Transfers
  // through the host cannot be recorded. NCCL does not let a communicator end before the graphs that hold its work, and
  // does not promise that such graphs and other communicators' work on one device run in one order on all ranks.
  virtual bool exchanges_amid_ops() const { return context_.tensor.is_split(); }

 protected:
  explicit Layer(const LayerContext& context, SavedPart saved_part = SavedPart::nothing)
      : context_(context), layout_(saved_part) {}

  const LayerContext& context_;
  LayerLayout layout_;
  LayerDesign design_{};
};

}  // namespace gptrain::model
