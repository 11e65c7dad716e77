#include "model/model.h"

#include <algorithm>

namespace gptrain::inline model {
namespace {

// Blocks of other pipeline stages. No pass runs them, so that one stands for all with equal ops and records.
class OtherBlocks {
 public:
  explicit OtherBlocks(const StepShape& shape) : shape_(shape) {}

  // Returns the block that stands for `layer`, which `make` makes if there is none yet.
  template <typename Make>
  std::shared_ptr<Layer> of(int64_t layer, bool gives_amax, const Make& make) {
    for (const Known& known : known_)
      if (known.gives_amax == gives_amax && are_alike(known.layer, layer)) return known.block;
    return known_.emplace_back(Known{layer, gives_amax, make()}).block;
  }

 private:
  struct Known {
    int64_t layer;
    bool gives_amax;
    std::shared_ptr<Layer> block;
  };

  bool are_alike(int64_t a, int64_t b) const {
    const ModelConfig& model = shape_.model;
    return model.attention(a) == model.attention(b) && model.ffn(a) == model.ffn(b) &&
           model.rotates(a) == model.rotates(b) && (!model.rotates(a) || model.rope(a) == model.rope(b)) &&
           shape_.saved_part(a) == shape_.saved_part(b);
  }

  const StepShape& shape_;
  std::vector<Known> known_;
};

}  // namespace

Model::Model(const StepShape& shape, const ModelSpec& spec, const std::vector<TensorShard>& shards,
             const ParameterLayout& layout, const Axes& axes, Backend& backend)
    : shape_(shape),
      tensor_(axes.tensor, shape.rows()),
      sequences_(axes.context),
      experts_(axes.experts),
      context_{shape_, tensor_, sequences_, backend, experts_} {
  const auto tensors_of = [&](size_t unit) { return UnitTensors(spec, shards, layout, static_cast<int64_t>(unit)); };
  const UnitTensors embedding = tensors_of(0);
  OtherBlocks others(shape_);
  layers_.push_back(std::make_shared<Embedding>(context_, embedding));
  for (size_t unit = 1; unit < spec.units.size() && spec.units[unit].kind != UnitKind::experts; ++unit) {
    const bool gives_amax = layers_.back()->records().wants_output_gradient_amax;
    if (spec.units[unit].kind == UnitKind::block) {
      const int64_t layer = spec.units[unit].layer;
      const auto make = [&] { return std::make_shared<Block>(context_, layer, tensors_of(unit), gives_amax); };
      const bool is_own = layout.units[unit].elements > 0;
      layers_.push_back(is_own ? make() : others.of(layer, gives_amax, make));
      continue;
    }
    const UnitTensors tensors = tensors_of(unit);
    const Parameter matrix = shape.model.tied_head ? embedding.find("token") : tensors.find("weight");
    auto head = std::make_shared<Head>(context_, tensors, matrix, gives_amax);
    head_ = head.get();
    layers_.push_back(std::move(head));
  }
}

int64_t Model::stream_gradient_bytes(int64_t unit) const {
  const bool with_amax = records(unit).wants_output_gradient_amax;
  return stream_bytes() + (with_amax ? align_up(context_.stream_gradient_amax(nullptr).bytes()) : 0);
}

}  // namespace gptrain::model
