// Costs of the parts of a step, from plans of three layers on few ranks. Layouts of a search share them.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "base/enum_array.h"
#include "config/run_config.h"
#include "machine/event_times.h"
#include "model/spec/layer_kinds.h"
#include "ops/target.h"
#include "planner/layout_search.h"
#include "step/plan_step.h"

namespace gptrain::inline planner {

// A model is an embedding, blocks of one or more kinds (LayerKind), and a head.
enum class UnitPart : uint8_t { embedding, block, head };
constexpr size_t num_unit_parts = 3;

// Seconds of one micro-batch's passes through a unit, on a rank that shares the unit with its tensor and context
// groups only.
struct PassCost {
  double forward = 0;
  double backward_input = 0;   // first half of a split backward pass, recomputation included
  double backward_weight = 0;  // second half of a split backward pass
  double backward = 0;         // backward pass that is not split, recomputation included
  double exposed_tensor = 0;   // part of all passes spent waiting for the tensor lane
  double exposed_context = 0;  // part spent waiting for the context lane
  double exposed_expert = 0;   // part spent waiting for the expert lane

  // Adds the costs of `count` equal units.
  void add(const PassCost& cost, double count) {
    forward += count * cost.forward;
    backward_input += count * cost.backward_input;
    backward_weight += count * cost.backward_weight;
    backward += count * cost.backward;
    exposed_tensor += count * cost.exposed_tensor;
    exposed_context += count * cost.exposed_context;
    exposed_expert += count * cost.exposed_expert;
  }
};

// Costs for one tensor size, micro-batch size, recomputation, kind of backward pass (split or whole), and kind of
// layer.
struct MicroBatchCosts {
  EnumArray<UnitPart, PassCost, num_unit_parts> passes{};
  int64_t held_bytes = 0;             // saved by a block for each micro-batch between its forward and backward pass
  int64_t held_for_weight_bytes = 0;  // saved by a block between the two halves of its backward pass
  int64_t message_bytes = 0;          // sent by a stage to the next one
  int64_t workspace_bytes = 0;        // workspace of a rank that has all parts
  int64_t outside_bytes = 0;          // device buffers of the groups' exchanges (StepMemory::outside)
  int64_t record_bytes = 0;           // saved activations of an offloaded block
  double copy_seconds = 0;            // copy of record_bytes, one way
  double hidden_share = 0;            // share of blocks whose copies are hidden by passes, by nominal rates
};

// Seconds for one unit in a step, for one ZeRO stage, on the links of one mesh.
struct UpdateCost {
  double sum = 0;      // one sum of its gradients over the data ranks
  double sum_ops = 0;  // ops that belong to a sum
  double keep = 0;     // adding a micro-batch's gradients to gradients that are stored in a narrower dtype
  double gather = 0;   // gathering its weights
  double codes = 0;    // encoding and decoding its weights (comm.weights)
  double update = 0;   // optimizer's update
  double measure = 0;  // pass over whole tensors before all updates, if the optimizer needs one (Optimizer::measure)
};

// Facts of the embedding, of the head, and of a block of each kind.
template <typename Fact>
struct OfUnits {
  Fact embedding, head;
  std::vector<Fact> blocks;  // by kind of layer

  // Returns the mean over blocks: `counts` has their numbers by LayerKinds::by_parameters. Without any block it is the
  // value of the first kind.
  template <typename Value>
  double mean_of_blocks(const std::vector<int64_t>& counts, const Value& value) const {
    int64_t all = 0;
    for (const int64_t count : counts) all += count;
    if (all == 0) return value(blocks.front());
    double mean = 0;
    for (size_t kind = 0; kind < counts.size(); ++kind)
      if (counts[kind] > 0)
        mean += value(blocks[kind]) * (static_cast<double>(counts[kind]) / static_cast<double>(all));
    return mean;
  }
};
using UpdateCosts = OfUnits<UpdateCost>;

struct PartBytes {
  int64_t parameters = 0;  // weights, gradients, master weights and optimizer state, as far as they are at home
  int64_t away_state = 0;  // master weights and optimizer state that are away
  int64_t away_weights = 0, away_gradients = 0;
  int64_t whole_gradients = 0;  // buffer for one unit's gradients, if they have one of their own (has_gradient_buckets)
  int64_t whole_weights = 0;    // buffer for one unit's gathered weights, with ZeRO 3
};
using UnitBytes = OfUnits<PartBytes>;

// Computes each cost on first use and stores it. Not thread-safe. Methods THROW the Error(usage) of a plan.
class LayoutCosts {
 public:
  LayoutCosts(RunConfig config, const Machine& machine, const Target& target)
      : config_(std::move(config)), machine_(machine), target_(target), kinds_(layer_kinds(config_.model)) {}

  const LayerKinds& kinds() const { return kinds_; }

  // REQUIRES: `recompute` is the kind of single blocks, so not every_nth or optimal. `split`: backward passes are
  // split. `kind`: index in kinds().
  const MicroBatchCosts& micro_batch(const RunLayout& layout, RecomputeKind recompute, bool split, size_t kind = 0);
  const UpdateCosts& update(const RunLayout& layout, size_t stage);
  // Returns, by stage, the first stage whose data ranks span as many nodes, so that its updates cost the same.
  const std::vector<size_t>& first_equal_stages(const RunLayout& layout);
  const UnitBytes& bytes(const RunLayout& layout);
  // Seconds to send `bytes` from a stage to the next one. Without sequence parallelism tensor ranks hold equal data:
  // each sends its part, and the receiving ranks gather the whole.
  struct MessageCost {
    double transfer = 0, gather = 0;
  };
  MessageCost message(const RunLayout& layout, int64_t bytes);

 private:
  // Keys of the stored costs: the values of a layout on which they depend.
  struct MeshKey {
    int64_t tensor, context, pipeline, data;
    int64_t expert, expert_tensor;
    RankOrder rank_order;

    auto operator<=>(const MeshKey&) const = default;
  };
  struct MicroBatchKey {
    int64_t tensor, context;
    ContextMethod context_method;
    int64_t expert, expert_tensor;
    int64_t stride;  // ranks between neighbouring ranks of a stage that do not share layers; 0: of no effect
    bool sequence;
    int64_t micro;
    RecomputeKind recompute;
    bool split;
    size_t kind;

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
    int64_t replicas, expert, expert_replicas, zero;

    auto operator<=>(const BytesKey&) const = default;
  };

  static MeshKey mesh_key(const RunLayout& layout);
  // Returns the number of data ranks of the smallest mesh in which `replicas` ranks hold the same experts, or hold the
  // same blocks if no experts are spread.
  static int64_t small_data(const RunLayout& layout, int64_t replicas);

  // Returns a config with three layers of one kind on one stage, the layout's tensor and context ranks, and `data`
  // data ranks.
  RunConfig small_config(const RunLayout& layout, int64_t data, size_t kind) const;
  MicroBatchCosts make_micro_batch(const RunLayout& layout, RecomputeKind recompute, bool split, size_t kind) const;
  void add_copies(const StepPlan& plan, const EventTimes& times, MicroBatchCosts& costs) const;
  UpdateCosts make_update(const RunLayout& layout, size_t stage) const;
  // Makes the costs of embedding, head and the block in a model whose layers are all of one kind.
  UpdateCosts make_update_of_kind(const RunLayout& layout, size_t stage, size_t kind) const;
  std::vector<size_t> stages_alike(const RunLayout& layout) const;
  UnitBytes make_bytes(const RunLayout& layout) const;
  UnitBytes make_bytes_of_kind(const RunLayout& layout, size_t kind) const;
  // Makes facts of all units from those of models whose layers are of one kind.
  template <typename Fact, typename Make>
  OfUnits<Fact> of_all_kinds(const Make& make) const;

  RunConfig config_;
  Machine machine_;
  Target target_;
  LayerKinds kinds_;
  std::map<MicroBatchKey, MicroBatchCosts> micro_batches_;
  std::map<UpdateKey, UpdateCosts> updates_;
  std::map<MeshKey, std::vector<size_t>> alike_;
  std::map<BytesKey, UnitBytes> bytes_;
  std::map<MeshKey, EventTimes> of_meshes_;
};

}  // namespace gptrain::planner
