// A layer of the model: what every kind of it (embedding, block, head) offers to a schedule.
//
// A layer owns no memory. What it keeps between passes lies in records that it declares; every pointer of a call is the
// caller's. Which of a call's buffers each pass reads and writes is LayerRecords::use, and is all that a schedule knows
// of a layer:
//
//                     reads                                                writes
//   forward           input                                                output, kept, saved_for_input, saved_for_weight
//   recompute         input, kept                                          saved_for_input, saved_for_weight
//   loss (head)       saved_for_input                                      gradients
//   backward_input    input, kept, saved_for_input, saved_for_weight,      gradients, d_input
//                     gradients (the head), d_output (not the head)
//   backward_weight   saved_for_weight, gradients, d_output (where an op of W reads it)
//
// A layer leaves out what it does not have: the embedding has no input, saves nothing and has no backward_input; the
// head has neither output nor d_output. Only a block keeps something, and only where StepShape::keeps_products.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "model/layer_call.h"
#include "model/layer_records.h"
#include "model/micro_batch.h"
#include "model/spec/layout.h"
#include "model/spec/spec.h"
#include "model/tensor_parallel.h"
#include "ops/backend.h"

namespace gptrain {

// The shape of one micro-batch through one model.
struct StepShape {
  ModelConfig model;
  PrecisionConfig precision;
  int64_t batch = 0;            // B, sequences of a micro-batch
  int64_t sequence_length = 0;  // T, <= model.sequence_length
  int64_t loss_chunk_tokens = 0;
  uint64_t seed = 0;            // of dropout
  bool training = true;         // false: no dropout
  bool mask_documents = false;  // tokens attend within their document only
  int64_t max_documents = 0;    // of a sequence, as AttentionMask has it
  bool deterministic = true;    // the same bits in every run
  // Layers of the model that keep what their products computed, and whose recompute runs no product. Products then do not
  // compute activations, which recompute could not get from them again. Empty: none does.
  std::vector<bool> with_kept_products = {};
  int code_bits = 0;  // of the derivative of the activation (ops/few_bits.h); 0: its input is kept
  ProjectionConfig projection = {};  // of inputs of linears
  bool codes_inputs = false;  // inputs of linears and norms are saved as Codec::blocks

  int64_t rows() const { return batch * sequence_length; }
  bool keeps_products(int64_t layer) const {
    return !with_kept_products.empty() && with_kept_products[static_cast<size_t>(layer)];
  }
  MicroBatchShape micro_batch() const { return {batch, sequence_length, mask_documents}; }
};

// One tensor of a layer on this rank.
struct Parameter {
  int64_t offset = 0;          // elements from the start of the unit
  int64_t rows = 0, cols = 0;  // a vector is one row; no rows: the model has no such tensor
  int64_t true_rows = 0;       // that count in the model: all, but for keys' and values' heads that a lower rank has

  bool given() const { return rows > 0; }
  // Its place in one of a unit's buffers; not given if the model has no such tensor.
  Matrix in(std::byte* unit, DType dtype) const {
    return given() ? Matrix(unit + offset * dtype_bytes(dtype), dtype, rows, cols) : Matrix();
  }
  Matrix norm(const LayerCall& call) const { return in(call.parameters.norms, DType::f32); }
  Matrix gradient(const LayerCall& call) const { return in(call.parameters.gradients, DType::f32); }

  bool operator==(const Parameter&) const = default;
};

// The tensors of one unit on this rank, by their names in it ("norm1.weight").
class UnitTensors {
 public:
  UnitTensors(const ModelSpec& spec, const std::vector<TensorShard>& shards, const ParameterLayout& layout,
              int64_t unit);

  Parameter find(std::string_view name) const;  // not given where the unit has none of that name
  std::vector<Parameter> all() const;

 private:
  std::vector<std::pair<std::string, Parameter>> tensors_;
};

// What the layers of a model and their parts share.
struct LayerContext {
  const StepShape& shape;
  TensorRows& tensor;
  Backend& backend;

  DType compute() const { return shape.precision.compute; }
  // The residual stream of this rank in memory of the caller.
  Matrix stream(std::byte* data) const {
    return {data, shape.precision.residual, tensor.own_rows(), shape.model.hidden_size};
  }
  Matrix weight(const LayerCall& call, const Parameter& parameter) const {
    return parameter.in(call.parameters.weights, compute());
  }
  int64_t stream_bytes() const { return align_up(stream(nullptr).bytes()); }
  // The amax behind a carrier's matrix.
  Matrix carrier_amax(std::byte* carrier) const { return {carrier + stream_bytes(), DType::f32, 1, amax_parts}; }
};

// A matrix that a linear multiplies by its weight: its input, or the gradient of its output. `amax`: [1, amax_parts]
// f32, where the linear has asked for it (Linear::input_room); the op that computes x leaves it.
struct Factor {
  Matrix x;
  Matrix amax = {};
};

// Everything that decides a layer's ops, but for what all layers of a model share.
struct LayerDesign {
  UnitKind kind;
  bool gives_amax;  // of d_input
  std::vector<Parameter> parameters;
  LayerRecords records;

  bool operator==(const LayerDesign&) const = default;
};

class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const LayerRecords& records() const { return design_.records; }
  // Layers of equal designs run equal ops on operands of equal shapes.
  const LayerDesign& design() const { return design_; }

  virtual void forward(const LayerCall& call) = 0;
  // Fills the saved records again, with the same bits, from the input and from what forward has kept. It does not
  // compute the output.
  virtual void recompute(const LayerCall& call) = 0;
  virtual void backward(const LayerCall& call, BackwardPart part) = 0;

 protected:
  explicit Layer(const LayerContext& context, bool keeps_products = false)
      : context_(context), layout_(keeps_products) {}

  const LayerContext& context_;
  LayerLayout layout_;
  LayerDesign design_{};
};

}  // namespace gptrain
