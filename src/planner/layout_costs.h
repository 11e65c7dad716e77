// What parts of a step cost, shared by the layouts of a search: from plans of three layers on few ranks.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "config/run_config.h"
#include "ops/target.h"
#include "machine/event_times.h"
#include "planner/layout_search.h"
#include "step/plan_step.h"

namespace gptrain {

// A model is an embedding, equal blocks, and a head.
enum class UnitPart : uint8_t { embedding, block, head };
constexpr size_t num_unit_parts = 3;

// A micro-batch's passes through one unit, on a rank that shares it with those of its tensor group only.
struct PassCost {
  double forward = 0;
  double backward_input = 0;   // where backward passes are split; recomputation included
  double backward_weight = 0;  // likewise
  double backward = 0;         // whole
  double exposed_tensor = 0;   // of all that, waiting for the tensor lane
};

// Of one tensor size, micro-batch, recomputation and kind of backward pass (split or whole).
struct MicroBatchCosts {
  std::array<PassCost, num_unit_parts> passes{};
  int64_t held_bytes = 0;             // that a block keeps of a micro-batch between its forward and its backward pass
  int64_t held_for_weight_bytes = 0;  // between the two halves of its backward pass
  int64_t message_bytes = 0;          // that a stage sends the next one
  int64_t workspace_bytes = 0;        // of a rank that has all parts
  int64_t outside_bytes = 0;          // as of StepMemory::outside, on the device
  int64_t record_bytes = 0;           // of a block that is offloaded
  double copy_seconds = 0;            // of that, one way
  double hidden_share = 0;            // of blocks: those whose copies hide, by nominal rates
};

// Of one unit and step, by ZeRO stage, on the links of one mesh.
struct UpdateCost {
  double sum = 0;       // of gradients over the data ranks: each time
  double sum_ops = 0;   // ops that belong to a sum
  double keep = 0;      // of a micro-batch's gradients, where a rank adds them up alone and narrower than they are made
  double gather = 0;    // of weights
  double update = 0;
  double measure = 0;   // a pass before all updates, where the optimizer looks at whole tensors first (Optimizer::measure)
};
using UpdateCosts = std::array<UpdateCost, num_unit_parts>;

struct PartBytes {
  int64_t parameters = 0;        // weights, gradients, master weights, optimizer state
  int64_t whole_gradients = 0;   // of one unit, where they are a buffer of their own (makes_gradients_apart)
  int64_t whole_weights = 0;     // likewise (ZeRO 3)
};
using UnitBytes = std::array<PartBytes, num_unit_parts>;

// Makes each once, when it is first asked for. Error(usage) of a plan comes through.
class LayoutCosts {
 public:
  LayoutCosts(const RunConfig& config, const Machine& machine, const Target& target)
      : config_(config), machine_(machine), target_(target) {}

  // `recompute`: not every_nth, whose blocks are of one of the other kinds.
  const MicroBatchCosts& micro_batch(const RunLayout& layout, RecomputeKind recompute, bool split);
  // Of a stage's units.
  const UpdateCosts& update(const RunLayout& layout, size_t stage);
  // The first of the stages whose data ranks lie on nodes as those of that stage do: their updates cost as much.
  size_t first_alike(const RunLayout& layout, size_t stage);
  const UnitBytes& bytes(const RunLayout& layout);
  // A message from a stage to the next one. Tensor ranks that have the same send a part each, and gather the whole.
  struct MessageCost {
    double transfer = 0, gather = 0;  // seconds
  };
  MessageCost message(const RunLayout& layout, int64_t bytes);

 private:
  // The values of a layout that costs depend on.
  struct MeshKey {
    int64_t tensor, pipeline, data;
    RankOrder rank_order;

    auto operator<=>(const MeshKey&) const = default;
  };
  struct MicroBatchKey {
    int64_t tensor;
    bool sequence;
    int64_t micro;
    RecomputeKind recompute;
    bool split;

    auto operator<=>(const MicroBatchKey&) const = default;
  };
  struct UpdateKey {
    MeshKey mesh;
    bool sequence;
    int64_t zero;
    size_t stage;

    auto operator<=>(const UpdateKey&) const = default;
  };
  struct BytesKey {
    int64_t tensor;
    bool sequence;
    int64_t data, zero;

    auto operator<=>(const BytesKey&) const = default;
  };

  static MeshKey mesh_key(const RunLayout& layout);

  // Three layers of the model on one stage, with the layout's tensor ranks and as many data ranks.
  RunConfig small_config(const RunLayout& layout, int64_t data) const;
  MicroBatchCosts make_micro_batch(const RunLayout& layout, RecomputeKind recompute, bool split) const;
  void add_copies(const StepPlan& plan, const EventTimes& times, MicroBatchCosts& costs) const;
  UpdateCosts make_update(const RunLayout& layout, size_t stage) const;
  std::vector<size_t> stages_alike(const RunLayout& layout) const;
  UnitBytes make_bytes(const RunLayout& layout) const;

  RunConfig config_;
  Machine machine_;
  Target target_;
  std::map<MicroBatchKey, MicroBatchCosts> micro_batches_;
  std::map<UpdateKey, UpdateCosts> updates_;
  std::map<MeshKey, std::vector<size_t>> alike_;
  std::map<BytesKey, UnitBytes> bytes_;
  std::map<MeshKey, EventTimes> of_meshes_;
};

}  // namespace gptrain
