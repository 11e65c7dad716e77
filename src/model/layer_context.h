// Context of a layer: the shapes and the tensors that it works on, and the services that it shares with other layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "model/context_parallel.h"
#include "model/expert_parallel.h"
#include "model/gemm_operand.h"
#include "model/layer_call.h"
#include "model/micro_batch.h"
#include "model/record.h"
#include "model/spec/layout.h"
#include "model/spec/spec.h"
#include "model/tensor_parallel.h"
#include "ops/backend.h"
#include "schedule/layer_choices.h"

namespace gptrain::inline model {

// The shape of one micro-batch through one model.
struct StepShape {
  ModelConfig model;
  PrecisionConfig precision;
  int64_t batch = 0;              // B, sequences of a micro-batch
  int64_t sequence_length = 0;    // T, <= model.sequence_length
  int64_t sequences_of_step = 0;  // sequences of all micro-batches and ranks, over which routers' losses are means
  uint64_t seed = 0;              // seed of dropout
  bool training = true;           // false: no dropout
  bool mask_documents = false;    // tokens attend only within their document
  int64_t max_documents = 0;      // AttentionMask::max_documents
  bool deterministic = true;      // true: the same bits in every run (AttentionBackward::fixed_bits)
  // For each layer of the model, the part that it saves if it is recomputed. A linear whose product is saved does not
  // compute the activation as well, as recompute needs the activation's input. Empty: no layer keeps a part.
  std::vector<SavedPart> saved_parts = {};
  LayerChoices choices = {};
  ContextRank context = {};  // the rank has its part of the tokens of each sequence

  int64_t rows() const { return micro_batch().rows(); }
  // Returns the tokens that the rows of a micro-batch stand for.
  TokenRows token_rows() const { return micro_batch().token_rows(); }
  SavedPart saved_part(int64_t layer) const { return saved_parts.empty() ? SavedPart::nothing : saved_parts[layer]; }
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

}  // namespace gptrain::model
