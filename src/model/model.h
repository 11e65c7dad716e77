// The model: its layers in forward order, one for each unit of the spec. They are pre-norm transformer blocks (GPT-2;
// LLaMA, arXiv 2302.13971); the choices of ModelConfig are independent of each other.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/layers.h"

namespace gptrain::inline model {

class Model {
 public:
  // The axes that ranks share layers, sequences and experts along.
  struct Axes {
    TensorParallel tensor = {};
    ContextParallel context = {};
    ExpertParallel experts = {};
  };
  // REQUIRES: the backend, and the groups and lanes of `axes`, outlive the model; axes.context.axis is that of shape.
  Model(const StepShape& shape, const ModelSpec& spec, const std::vector<TensorShard>& shards,
        const ParameterLayout& layout, const Axes& axes, Backend& backend);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const StepShape& shape() const { return shape_; }
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  Layer& layer(int64_t unit) const { return *layers_[unit]; }
  Head& head() const { return *head_; }
  const LayerRecords& records(int64_t unit) const { return layer(unit).records(); }
  int64_t stream_bytes() const { return context_.stream_bytes(); }  // bytes of a layer's input or output, [N, h] R
  int64_t stream_elements() const { return tensor_.own_rows() * shape_.model.hidden_size; }
  // RETURNS whether each tensor rank holds only some rows of the residual stream (sequence parallelism).
  bool splits_rows() const { return tensor_.has_own_rows(); }
  int64_t stream_gradient_bytes(int64_t unit) const;  // output's gradient, and its amax if that is read

 private:
  const StepShape shape_;
  TensorRows tensor_;
  const ContextParallel sequences_;
  const ExpertParallel experts_;
  const LayerContext context_;
  std::vector<std::shared_ptr<Layer>> layers_;  // blocks of other stages share an object with those like them
  Head* head_;                                  // the last one
};

}  // namespace gptrain::model
