// A layer of the model: the interface of embedding, blocks and head to a schedule.
//
// A layer owns no memory. Data that it keeps between passes lie in records that it declares; the caller owns all memory
// of a call. LayerRecords::use says which of a call's buffers each pass reads and writes. A schedule knows nothing else
// of a layer:
//
//                     reads                                                writes
//   forward           input                                                output, kept, saved_for_input,
//                                                                          saved_for_weight
//   recompute         input, kept                                          saved_for_input, saved_for_weight
//   loss (head)       saved_for_input                                      gradients
//   backward_input    input, kept, saved_for_input, saved_for_weight,      gradients, d_input
//                     gradients (the head), d_output (not the head)
//   backward_weight   saved_for_weight, gradients, d_output (where an op of W reads it)
//
// Not every layer has all of these: the embedding has no input, saves nothing and has no backward_input; the head has
// neither output nor d_output. `saved_for_recompute` exists in blocks with StepShape::keeps_products only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/attention_pattern.h"
#include "base/rotary.h"
#include "config/run_config.h"
#include "model/context_parallel.h"
#include "model/expert_parallel.h"
#include "model/layer_call.h"
#include "model/layer_records.h"
#include "model/micro_batch.h"
#include "model/spec/layout.h"
#include "model/spec/spec.h"
#include "model/tensor_parallel.h"
#include "ops/backend.h"

namespace gptrain::inline model {

// The shape of one micro-batch through one model.
struct StepShape {
  ModelConfig model;
  PrecisionConfig precision;
  int64_t batch = 0;            // B, sequences of a micro-batch
  int64_t sequence_length = 0;  // T, <= model.sequence_length
  int64_t loss_chunk_tokens = 0;
  int64_t sequences_of_step = 0;  // sequences of all micro-batches and ranks, over which routers' losses are means
  uint64_t seed = 0;              // seed of dropout
  bool training = true;           // false: no dropout
  bool mask_documents = false;    // tokens attend only within their document
  int64_t max_documents = 0;      // AttentionMask::max_documents
  bool deterministic = true;      // true: the same bits in every run (AttentionBackward::fixed_bits)
  // For each layer of the model, whether it keeps its products' outputs, so that its recompute runs no product. These
  // products do not compute activations, since recompute needs the activations' inputs. Empty: no layer does.
  std::vector<bool> saves_products = {};
  int code_bits = 0;  // bits of the activation's derivative (ops/few_bits.h); 0: its input is saved instead
  ProjectionConfig projection = {};  // projection of linears' saved inputs
  bool codes_inputs = false;         // inputs of linears and norms are saved as Codec::blocks
  ContextRank context = {};          // the rank has its part of the tokens of each sequence

  int64_t rows() const { return micro_batch().rows(); }
  // Returns the tokens that the rows of a micro-batch stand for.
  TokenRows token_rows() const { return micro_batch().token_rows(); }
  bool keeps_products(int64_t layer) const {
    return !saves_products.empty() && saves_products[static_cast<size_t>(layer)];
  }
  MicroBatchShape micro_batch() const { return {batch, sequence_length, mask_documents, context}; }
};

// One tensor of a layer on this rank.
struct Parameter {
  int64_t offset = 0;          // elements from the start of the unit
  int64_t rows = 0, cols = 0;  // a vector has one row; 0 rows: the model has no such tensor
  int64_t true_rows = 0;       // rows counted for the model: all except keys' and values' heads that a lower rank holds

  bool given() const { return rows > 0; }
  // RETURNS its matrix in one of a unit's buffers; not given if the model has no such tensor.
  Matrix in(std::byte* unit, DType dtype) const {
    return given() ? Matrix(unit + offset * dtype_bytes(dtype), dtype, rows, cols) : Matrix();
  }
  Matrix norm(const LayerCall& call) const { return in(call.parameters.norms, DType::f32); }
  Matrix gradient(const LayerCall& call) const { return in(call.parameters.gradients, DType::f32); }

  bool operator==(const Parameter&) const = default;
};

// The tensors of one unit on this rank, by their names in the unit ("norm1.weight"). A block's experts are among them;
// where they are a unit of their own, their offsets count from that unit's start.
class UnitTensors {
 public:
  UnitTensors(const ModelSpec& spec, const std::vector<TensorShard>& shards, const ParameterLayout& layout,
              int64_t unit);

  Parameter find(std::string_view name) const;  // not given if the unit has no such tensor
  std::vector<Parameter> all() const;

 private:
  void add(const ModelSpec& spec, const std::vector<TensorShard>& shards, const ParameterLayout& layout, int64_t unit);

  std::vector<std::pair<std::string, Parameter>> tensors_;
};

// Context shared by the layers of a model and their parts. Borrows its references.
struct LayerContext {
  const StepShape& shape;
  TensorRows& tensor;
  const ContextParallel& context;
  Backend& backend;
  const ExpertParallel& experts;

  DType compute() const { return shape.precision.compute; }
  // RETURNS this rank's rows of the residual stream at `data`.
  Matrix stream(std::byte* data) const {
    return {data, shape.precision.residual, tensor.own_rows(), shape.model.hidden_size};
  }
  Matrix weight(const LayerCall& call, const Parameter& parameter) const {
    return parameter.in(call.parameters.weights, compute());
  }
  int64_t stream_bytes() const { return align_up(stream(nullptr).bytes()); }
  // RETURNS the amax after the matrix in a buffer that holds the gradient of the residual stream.
  Matrix stream_gradient_amax(std::byte* stream_gradient) const {
    return {stream_gradient + stream_bytes(), DType::f32, 1, amax_parts};
  }
};

// A matrix that a linear multiplies by its weight: its input, or the gradient of its output. `amax`: [1, amax_parts]
// f32, written by the op that computes x; given only if the linear asked for it (Linear::input_buffer).
struct GemmOperand {
  Matrix x;
  Matrix amax = {};
};

// Everything that determines a layer's ops beside the context shared by all layers.
struct LayerDesign {
  UnitKind kind;
  bool gives_amax = false;                    // its B writes the amax of d_input
  AttentionPattern attention = {};            // pattern of a block
  std::optional<RotaryAngles> rotation = {};  // angles of a block that rotates queries and keys
  std::vector<Parameter> parameters;
  LayerRecords records;

  bool is_routed = false;  // a block with experts

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
  // Fills the saved records again, with the same bits, from the input and the `saved_for_recompute` record. Does not
  // compute the output.
  virtual void recompute(const LayerCall& call) = 0;
  virtual void backward(const LayerCall& call, BackwardPart part) = 0;
  // Whether ranks communicate between the ops of a pass, which are then not recorded (Backend::run_recorded). Transfers
  // through the host cannot be recorded. NCCL does not let a communicator end before the graphs that hold its work, and
  // does not promise that such graphs and other communicators' work on one device run in one order on all ranks.
  virtual bool exchanges_amid_ops() const { return context_.tensor.is_split(); }

 protected:
  explicit Layer(const LayerContext& context, bool keeps_products = false)
      : context_(context), layout_(keeps_products) {}

  const LayerContext& context_;
  LayerLayout layout_;
  LayerDesign design_{};
};

}  // namespace gptrain::model
