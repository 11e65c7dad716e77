// Units of a model: the parts that are gathered, reduced, recomputed, offloaded and assigned to a stage as a whole.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gptrain::inline spec {

// Kind of a unit: the embedding, a block, or the head (final norm and output projection). A unit is gathered, reduced,
// recomputed, offloaded and assigned to a stage as a whole. Units are numbered in forward order. Behind the head come
// the experts of blocks where ranks share them: units of parameters only, which go along with their blocks.
enum class UnitKind : uint8_t { embedding, block, head, experts };

// Ranks that hold replicas of a unit's parameters (data-parallel groups). Gradients are summed over them, and ZeRO cuts
// the unit into as many pieces as they are.
enum class ReplicaGroup : uint8_t {
  data,         // all ranks with the same coordinates on the tensor and pipeline axes
  expert_data,  // ranks with the same experts (ExpertAxis)
  count
};
constexpr size_t num_replica_groups = static_cast<size_t>(ReplicaGroup::count);

struct Unit {
  UnitKind kind;
  int64_t layer;  // number of a block among the blocks; 0 for embedding and head
  ReplicaGroup replicas = ReplicaGroup::data;
  int32_t experts = -1;  // unit of a block's experts; -1: they are in the block's own, or there are none
};

}  // namespace gptrain::spec
