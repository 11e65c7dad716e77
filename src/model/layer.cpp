#include "model/layer.h"

namespace gptrain::inline model {

UnitTensors::UnitTensors(const ModelSpec& spec, const std::vector<TensorShard>& shards, const ParameterLayout& layout,
                         int64_t unit) {
  add(spec, shards, layout, unit);
  const int64_t experts = spec.units[unit].experts;
  if (experts >= 0) add(spec, shards, layout, experts);
}

void UnitTensors::add(const ModelSpec& spec, const std::vector<TensorShard>& shards, const ParameterLayout& layout,
                      int64_t unit) {
  const UnitRange& range = layout.units[unit];
  const Unit& kind = spec.units[unit];
  const std::string prefix = kind.kind == UnitKind::embedding ? "embedding."
                             : kind.kind == UnitKind::head    ? "head."
                                                              : "blocks." + std::to_string(kind.layer) + ".";
  for (int64_t i = range.first_tensor; i < range.first_tensor + range.num_tensors; ++i) {
    const auto index = static_cast<size_t>(i);
    const TensorSpec& tensor = spec.tensors[index];
    const TensorShard& shard = shards[index];
    const bool is_vector = shard.shape.size() == 1;
    Parameter parameter{.offset = layout.segments[index].offset - range.offset,
                        .rows = is_vector ? 1 : shard.shape[0],
                        .cols = shard.shape.back()};
    for (const ShardBox& box : shard.boxes)
      parameter.true_rows += box.owned || tensor.split == Split::none ? box.shape[0] : 0;
    tensors_.emplace_back(tensor.name.substr(prefix.size()), parameter);
  }
}

Parameter UnitTensors::find(std::string_view name) const {
  for (const auto& [known, parameter] : tensors_) {
    if (known == name) return parameter;
  }
  return {};
}

std::vector<Parameter> UnitTensors::all() const {
  std::vector<Parameter> parameters;
  for (const auto& [name, parameter] : tensors_) parameters.push_back(parameter);
  return parameters;
}

}  // namespace gptrain::model
