#include "model/model.h"

#include <algorithm>

namespace gptrain::inline model {

Model::Model(const StepShape& shape, const ModelSpec& spec, const std::vector<TensorShard>& shards,
             const ParameterLayout& layout, const TensorParallel& tensor, Backend& backend)
    : shape_(shape), tensor_(tensor, shape.rows()), context_{shape_, tensor_, backend} {
  const UnitTensors embedding(spec, shards, layout, 0);
  layers_.push_back(std::make_unique<Embedding>(context_, embedding));
  for (size_t unit = 1; unit < spec.units.size(); ++unit) {
    const UnitTensors tensors(spec, shards, layout, static_cast<int64_t>(unit));
    const bool gives_amax = layers_.back()->records().wants_output_gradient_amax;
    if (spec.units[unit].kind == UnitKind::block) {
      layers_.push_back(std::make_unique<Block>(context_, spec.units[unit].layer, tensors, gives_amax));
      continue;
    }
    const Parameter matrix = shape.model.tied_head ? embedding.find("token") : tensors.find("weight");
    auto head = std::make_unique<Head>(context_, tensors, matrix, gives_amax);
    head_ = head.get();
    layers_.push_back(std::move(head));
  }
}

int64_t Model::stream_gradient_bytes() const {
  const bool with_amax = std::any_of(layers_.begin(), layers_.end(), [](const std::unique_ptr<Layer>& layer) {
    return layer->records().wants_output_gradient_amax;
  });
  return stream_bytes() + (with_amax ? align_up(context_.stream_gradient_amax(nullptr).bytes()) : 0);
}

}  // namespace gptrain::model
