// The model: its layers in forward order, one for each unit of the spec. The maths: pre-norm transformer blocks (GPT-2;
// LLaMA, arXiv 2302.13971), every choice of ModelConfig independent of the others.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/layers.h"

namespace gptrain {

class Model {
 public:
  // `tensor`: the groups and the stream that it names are the caller's and outlive the model, as does the backend.
  Model(const StepShape& shape, const ModelSpec& spec, const std::vector<TensorShard>& shards,
        const ParameterLayout& layout, const TensorParallel& tensor, Backend& backend);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const StepShape& shape() const { return shape_; }
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  Layer& layer(int64_t unit) const { return *layers_[static_cast<size_t>(unit)]; }
  Head& head() const { return *head_; }
  const LayerRecords& records(int64_t unit) const { return layer(unit).records(); }
  int64_t stream_bytes() const { return context_.stream_bytes(); }  // of one [N, h] R matrix: inputs and outputs
  int64_t stream_elements() const { return tensor_.own_rows() * shape_.model.hidden_size; }
  // Whether tensor ranks have rows of their own of such matrices (sequence parallelism).
  bool splits_rows() const { return tensor_.has_own_rows(); }
  int64_t carrier_bytes() const;  // of the gradient of one, and behind it, where a layer wants that, its amax

 private:
  const StepShape shape_;
  TensorRows tensor_;
  const LayerContext context_;
  std::vector<std::unique_ptr<Layer>> layers_;
  Head* head_;  // the last one
};

}  // namespace gptrain
