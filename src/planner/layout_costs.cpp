#include "planner/layout_costs.h"

#include <algorithm>
#include <numeric>

#include "base/enum_array.h"
#include "config/axis_sizes.h"
#include "config/parallelism.h"
#include "fit/choose_step.h"
#include "fit/nominal_times.h"
#include "model/spec/spec.h"
#include "ops/op_event.h"
#include "ops/updates.h"
#include "optim/types.h"
#include "parallel/gradient_sums.h"
#include "parallel/parameters.h"
#include "planner/layouts.h"
#include "planner/rank_clock.h"
#include "step/plan_step.h"

namespace gptrain::inline planner {
namespace {

constexpr int64_t small_layers = 3;
constexpr int32_t middle_block = 2;        // number of the unit
constexpr int32_t middle_micro_batch = 1;  // one of three: gradients exist already, and are not summed over ranks yet

UnitPart part_of(int32_t unit, int64_t num_units) {
  return unit == 0 ? UnitPart::embedding : unit + 1 == num_units ? UnitPart::head : UnitPart::block;
}

// Suffix of ops that measure whole tensors (ops/tensor_norms.h).
constexpr std::string_view norms_suffix = "_norms";

// Units by UnitPart whose costs stand for all units of the part.
constexpr EnumArray<UnitPart, int32_t, num_unit_parts> part_units = {0, middle_block,
                                                                     static_cast<int32_t>(small_layers) + 1};

void add_pass(PassCost& cost, ActionKind kind, UnitPart part, double seconds) {
  switch (kind) {
    case ActionKind::load:
    case ActionKind::forward:
      cost.forward += seconds;
      return;
    case ActionKind::backward_weight:
      // The head's weight gradients are computed together with its loss.
      (part == UnitPart::head ? cost.backward_input : cost.backward_weight) += seconds;
      break;
    default:
      cost.backward_input += seconds;
  }
  cost.backward += seconds;
}

bool is_pass(ActionKind kind) { return kind <= ActionKind::backward; }

// Returns the bytes of the unit's buffers for the middle micro-batch that are alive in an action. Buffers of whole
// gradients are left out: units use one of these after another.
int64_t alive_bytes(const Program& program, int32_t action, int32_t unit) {
  int64_t bytes = 0;
  for (const Buffer& buffer : program.schedule.buffers) {
    if (buffer.unit == unit && buffer.micro_batch == middle_micro_batch && buffer.first <= action &&
        buffer.last >= action && buffer.kind != BufferKind::whole_gradients)
      bytes += program.bytes[buffer.kind][unit];
  }
  return bytes;
}

Event with_bytes(Event event, double scale) {
  event.bytes_moved = static_cast<int64_t>(static_cast<double>(event.bytes_moved) * scale);
  return event;
}

struct Work {
  double ops = 0, collectives = 0;  // seconds
};
// Returns the work of the unit's first action of that kind. `scale` multiplies the bytes of ops.
Work work_of(const StepLog& log, const EventTimes& times, ActionKind kind, int32_t unit, double scale = 1) {
  Work work;
  for (const LoggedAction& action : log.actions) {
    if (action.kind != kind || action.unit != unit) continue;
    for (const Event& event : log.blocks[action.block]) {
      const bool is_collective = event.kind == Event::Kind::collective;
      (is_collective ? work.collectives : work.ops) +=
          times.seconds_of(is_collective ? event : with_bytes(event, scale));
    }
    break;
  }
  return work;
}

// Returns, by unit, the seconds of the optimizer's pass over whole tensors before the updates. Units at the end without
// such tensors are missing; the result is empty if the optimizer has no such pass. Time for all units at once is
// divided in proportion to their own times. `scale` multiplies the bytes of norms and sums, `piece` those of the other
// ops.
std::vector<double> first_pass_of(const StepLog& log, const EventTimes& times, double scale, double piece) {
  std::vector<double> seconds;
  double of_all = 0;
  for (const LoggedAction& action : log.actions) {
    if (action.kind != ActionKind::norm) continue;
    for (const Event& event : log.blocks[action.block])
      if (event.name.ends_with(norms_suffix)) {
        seconds.push_back(times.seconds_of(with_bytes(event, scale)));
      } else if (event.name == FactoredSums::name) {
        of_all += times.seconds_of(with_bytes(event, scale));
      } else if (event.name == FactoredDirection::name || event.name == AdafactorVectors::name) {
        of_all += times.seconds_of(with_bytes(event, piece));
      }
  }
  if (seconds.empty()) return seconds;
  seconds.erase(seconds.begin());  // drops the op that clears the sums
  const double measured = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  for (double& of_unit : seconds) of_unit += measured > 0 ? of_all * of_unit / measured : 0;
  return seconds;
}

}  // namespace

RunConfig LayoutCosts::small_config(const RunLayout& layout, int64_t data, size_t kind) const {
  RunLayout small = layout;
  small.pipeline = small.virtual_stages = 1;
  small.schedule = PipelineOrder::one_f_one_b;
  small.is_balanced = false;
  small.rank_order = {};
  small.offload = offload::none;
  small.data = data;
  RunConfig config = with_layout(config_, small);
  config.model = with_layers(config.model, kinds_.kinds[kind], small_layers);
  config.memory.offload_optimizer = config.memory.offload_parameters = config.memory.offload_gradients =
      StatePlace::none;
  config.batch.accumulation = 3;
  config.batch.global = 3 * layout.micro * data;
  return config;
}

const MicroBatchCosts& LayoutCosts::micro_batch(const RunLayout& layout, RecomputeKind recompute, bool split,
                                                size_t kind) {
  const MicroBatchKey key{.tensor = layout.tensor,
                          .context = layout.context,
                          .context_method = layout.context_method,
                          .expert = layout.expert,
                          .expert_tensor = layout.expert_tensor,
                          .stride = layout.expert == 1                                     ? 0
                                    : layout.rank_order == RankOrder::tensor_pipeline_data ? layout.pipeline
                                                                                           : 1,
                          .sequence = layout.sequence,
                          .micro = layout.micro,
                          .recompute = recompute,
                          .split = split,
                          .kind = kind};
  const auto found = micro_batches_.find(key);
  if (found != micro_batches_.end()) return found->second;
  return micro_batches_.emplace(key, make_micro_batch(layout, recompute, split, kind)).first->second;
}

// Adds the costs of offloading a block's saved activations.
void LayoutCosts::add_copies(const StepPlan& plan, const EventTimes& times, MicroBatchCosts& costs) const {
  const Program& program = *plan.design->training;
  costs.record_bytes = record_bytes(program.bytes, program.schedule.traits(middle_block), middle_block);
  costs.copy_seconds = times.seconds_of(copy_event(download_name, costs.record_bytes, true));
  double forward = 0;
  for (const LoggedAction& action : plan.log.actions) {
    if (action.kind == ActionKind::forward && action.unit == middle_block && action.micro_batch == middle_micro_batch)
      forward = nominal_pass_seconds(plan.log.blocks[action.block], target_);
  }
  costs.hidden_share = std::min(1.0, forward / nominal_copy_seconds(costs.record_bytes, target_));
}

int64_t LayoutCosts::small_data(const RunLayout& layout, int64_t replicas) {
  if (layout.expert == 1) return std::min(layout.data, replicas);
  const int64_t of_sample = layout.tensor * layout.context;
  const int64_t wanted = layout.expert_tensor * layout.expert * std::min(layout.expert_replicas(), replicas);
  return std::lcm(of_sample, wanted) / of_sample;
}

MicroBatchCosts LayoutCosts::make_micro_batch(const RunLayout& layout, RecomputeKind recompute, bool split,
                                              size_t kind) const {
  const int64_t data = small_data(layout, 1);
  RunConfig config = small_config(layout, data, kind);
  config.parallel.zero = 0;
  config.memory.recompute = recompute;
  config.memory.recompute_interval = 0;
  if (split) config.parallel.pipeline_schedule = PipelineOrder::zero_bubble;
  const int64_t ranks = ranks_of_model(config.parallel) * data;
  const StepPlan plan = plan_rank({config, target_, ranks});
  const Program& program = *plan.design->training;
  // Groups that share experts lie as in the whole mesh.
  const RunConfig whole = layout.expert > 1 ? with_layout(config_, layout) : config;
  const EventTimes times(machine_, config, config.run.threads,
                         make_mesh(whole, layout.expert > 1 ? layout.world_size() : ranks), 0, target_.sharing);
  RankClock clock(plan.log, times);
  clock.next();
  MicroBatchCosts costs;
  constexpr auto tensor_lane = static_cast<size_t>(LaneKind::tensor);
  constexpr auto context_lane = static_cast<size_t>(LaneKind::context);
  constexpr auto expert_lane = static_cast<size_t>(LaneKind::expert);
  for (size_t i = 0; i < program.schedule.actions.size(); ++i) {
    const Action& action = program.schedule.actions[i];
    const double begin = clock.now().time;
    const auto exposed = clock.exposed_seconds();
    clock.next();
    if (action.micro_batch != middle_micro_batch || !is_pass(action.kind)) continue;
    const int32_t unit = std::max(action.unit, 0);
    if (std::find(part_units.begin(), part_units.end(), unit) == part_units.end()) continue;
    const UnitPart part = part_of(unit, small_layers + 2);
    PassCost& cost = costs.passes[part];
    add_pass(cost, action.kind, part, clock.now().time - begin);
    cost.exposed_tensor += clock.exposed_seconds()[tensor_lane] - exposed[tensor_lane];
    cost.exposed_context += clock.exposed_seconds()[context_lane] - exposed[context_lane];
    cost.exposed_expert += clock.exposed_seconds()[expert_lane] - exposed[expert_lane];
    if (action.kind == ActionKind::loss) costs.held_bytes = alive_bytes(program, static_cast<int32_t>(i), middle_block);
    if (action.kind == ActionKind::backward_weight && unit == middle_block)
      costs.held_for_weight_bytes = alive_bytes(program, static_cast<int32_t>(i), middle_block);
  }
  costs.message_bytes = program.bytes[BufferKind::stream][0];
  add_copies(plan, times, costs);
  const StepMemory& memory = plan.memory();
  costs.workspace_bytes = memory.arenas[MemoryClass::workspace];
  costs.outside_bytes = memory.outside[MemoryClass::communication];
  return costs;
}

std::vector<size_t> LayoutCosts::stages_alike(const RunLayout& layout) const {
  const RunConfig config = with_layout(config_, layout);
  const Mesh mesh = make_mesh(config, layout.world_size());
  std::vector<size_t> first;
  std::vector<double> nodes;
  for (size_t stage = 0; stage < static_cast<size_t>(layout.pipeline); ++stage) {
    const std::vector<int64_t> ranks =
        group_ranks(config, mesh, mesh.first_rank_of_stage(static_cast<int64_t>(stage)), GroupKind::data);
    nodes.push_back(span_of(ranks, machine_.cluster.gpus_per_node, mesh.world_size()).nodes);
    first.push_back(static_cast<size_t>(std::find(nodes.begin(), nodes.end(), nodes.back()) - nodes.begin()));
  }
  return first;
}

LayoutCosts::MeshKey LayoutCosts::mesh_key(const RunLayout& layout) {
  return {.tensor = layout.tensor,
          .context = layout.context,
          .pipeline = layout.pipeline,
          .data = layout.data,
          .expert = layout.expert,
          .expert_tensor = layout.expert_tensor,
          .rank_order = layout.rank_order};
}

const std::vector<size_t>& LayoutCosts::first_equal_stages(const RunLayout& layout) {
  const MeshKey key = mesh_key(layout);
  const auto found = alike_.find(key);
  return found != alike_.end() ? found->second : alike_.emplace(key, stages_alike(layout)).first->second;
}

const UpdateCosts& LayoutCosts::update(const RunLayout& layout, size_t stage) {
  const size_t alike = first_equal_stages(layout)[stage];
  const UpdateKey key{.mesh = mesh_key(layout), .sequence = layout.sequence, .zero = layout.zero, .stage = alike};
  const auto found = updates_.find(key);
  return found != updates_.end() ? found->second : updates_.emplace(key, make_update(layout, alike)).first->second;
}

template <typename Fact, typename Make>
OfUnits<Fact> LayoutCosts::of_all_kinds(const Make& make) const {
  OfUnits<Fact> all = make(0);
  for (size_t kind = 1; kind < kinds_.kinds.size(); ++kind) {
    const size_t alike = kinds_.alike[kind];
    all.blocks.push_back(alike < kind ? all.blocks[alike] : make(kind).blocks.front());
  }
  return all;
}

UpdateCosts LayoutCosts::make_update(const RunLayout& layout, size_t stage) const {
  return of_all_kinds<UpdateCost>([&](size_t kind) { return make_update_of_kind(layout, stage, kind); });
}

UpdateCosts LayoutCosts::make_update_of_kind(const RunLayout& layout, size_t stage, size_t kind) const {
  const int64_t data = small_data(layout, 2);
  RunConfig config = small_config(layout, data, kind);
  config.memory.recompute = RecomputeKind::none;
  config.memory.recompute_interval = 0;
  const StepPlan plan = plan_rank({config, target_, ranks_of_model(config.parallel) * data});
  // The bytes of a collective are those of all its ranks together, so that a plan of two data ranks has the right
  // bytes. Links are those of the whole mesh.
  const RunConfig whole = with_layout(config_, layout);
  const Mesh mesh = make_mesh(whole, layout.world_size());
  const EventTimes times(machine_, whole, whole.run.threads, mesh,
                         mesh.first_rank_of_stage(static_cast<int64_t>(stage)));
  // Share of a rank's piece in the planned rank's.
  const double of_copies = static_cast<double>(data) / static_cast<double>(layout.data);
  const double piece = cuts_state(layout.zero) ? of_copies : 1;
  // Returns the share of a block's piece in the planned one, its experts included, of which a rank has another share.
  const auto piece_of = [&](int32_t unit) {
    const int32_t experts = plan.design->spec->units[static_cast<size_t>(unit)].experts;
    if (experts < 0 || !cuts_state(layout.zero)) return piece;
    const auto elements = [&](int32_t of) {
      return static_cast<double>(plan.design->layout.units[static_cast<size_t>(of)].elements);
    };
    const auto ranks =
        static_cast<double>(layout.tensor * layout.context * data / layout.expert_tensor / layout.expert);
    const auto planned = elements(unit) / static_cast<double>(data) + elements(experts) / ranks;
    return (elements(unit) / static_cast<double>(layout.data) +
            elements(experts) / static_cast<double>(layout.expert_replicas())) /
           planned;
  };
  // A rank measures only a piece of each unit, even if it updates the whole unit.
  const std::vector<double> measured = first_pass_of(plan.log, times, of_copies, piece);
  const auto cost_of = [&](UnitPart part) {
    const int32_t unit = part_units[part];
    const auto number = static_cast<size_t>(unit);
    const auto work = [&](ActionKind action, double scale) { return work_of(plan.log, times, action, unit, scale); };
    const double piece_of_part = piece_of(unit);
    const Work sum = work(ActionKind::reduce, 1), second = work(ActionKind::reduce_on, 1);
    // A rank decodes a piece from each rank, the elements of a unit in all.
    const double summed = config.compression().is_on() ? 1 : piece_of_part;
    return UpdateCost{.sum = sum.collectives + second.collectives,
                      .sum_ops = sum.ops + second.ops + work(ActionKind::await_gradients, summed).ops,
                      .keep = work(ActionKind::keep_gradients, 1).ops,
                      .gather = work(ActionKind::gather, 1).collectives,
                      .codes = config.codes_weights() ? work(ActionKind::gather, piece_of_part).ops +
                                                            work(ActionKind::await_weights, 1).ops
                                                      : 0,
                      .update = work(ActionKind::update, piece_of_part).ops,
                      .measure = number < measured.size() ? measured[number] : 0};
  };
  return {cost_of(UnitPart::embedding), cost_of(UnitPart::head), {cost_of(UnitPart::block)}};
}

const UnitBytes& LayoutCosts::bytes(const RunLayout& layout) {
  const BytesKey key{.tensor = layout.tensor,
                     .sequence = layout.sequence,
                     .replicas = layout.replicas(),
                     .expert = layout.expert * layout.expert_tensor,
                     .expert_replicas = layout.expert_replicas(),
                     .zero = layout.zero};
  const auto found = bytes_.find(key);
  return found != bytes_.end() ? found->second : bytes_.emplace(key, make_bytes(layout)).first->second;
}

UnitBytes LayoutCosts::make_bytes(const RunLayout& layout) const {
  return of_all_kinds<PartBytes>([&](size_t kind) { return make_bytes_of_kind(layout, kind); });
}

UnitBytes LayoutCosts::make_bytes_of_kind(const RunLayout& layout, size_t kind) const {
  const RunConfig config = small_config(layout, layout.data, kind);
  const ModelSpec spec = make_spec(config.model, layout.expert > 1);
  const std::vector<TensorShard> shards =
      shard_tensors(spec, {layout.tensor, 0}, {.size = layout.expert, .tensor = {.size = layout.expert_tensor}});
  const MemoryConfig& memory = config_.memory;
  const bool state_away = memory.keeps_state_away(), weights_away = memory.offload_parameters != StatePlace::none;
  const Sharding sharding{
      .zero = layout.replicas() > 1 ? layout.zero : 0,
      .weights = weights_away ? Residency::away : Residency::resident,
      .separate_updated_weights = memory.delays_updates(),
      .updates_delayed = memory.delays_updates(),
      .gradients_away = memory.offload_gradients != StatePlace::none,
      .replica_ranks = {ReplicaRank{.size = layout.replicas()}, ReplicaRank{.size = layout.expert_replicas()}},
      .compute = config.precision.compute,
      .reduce = config.precision.reduce,
      .pure = config.precision.pure,
      .codes_weights = config.codes_weights(),
      .gradients = config.precision.gradients};
  const StateColumns columns = state_columns(config);
  const auto bytes_of = [&](UnitPart part) {
    PartBytes bytes;
    std::vector<bool> held(spec.units.size(), false);
    const auto unit = static_cast<size_t>(part_units[part]);
    held[unit] = true;
    const int32_t experts = spec.units[unit].experts;
    if (experts >= 0) held[static_cast<size_t>(experts)] = true;
    const ParameterLayout of_unit =
        make_layout(spec, shards, sharding.replica_counts(), layout.sequence, held, false, unit_end_for(columns));
    const ParameterBytes parameters = parameter_bytes(of_unit, sharding, columns);
    const auto add = [&bytes](int64_t of_part, bool is_away, int64_t PartBytes::*away) {
      bytes.*(is_away ? away : &PartBytes::parameters) += of_part;
    };
    add(parameters.weights + parameters.updated, weights_away, &PartBytes::away_weights);
    add(parameters.gradients, sharding.gradients_away, &PartBytes::away_gradients);
    add(parameters.master + parameters.state, state_away, &PartBytes::away_state);
    const int64_t elements =
        of_unit.units[unit].elements + (experts < 0 ? 0 : of_unit.units[static_cast<size_t>(experts)].elements);
    if (sharding.has_gradient_buckets()) bytes.whole_gradients = elements * dtype_bytes(DType::f32);
    const CompressionConfig& compression = config.compression();
    const GradientMessages messages = make_gradient_messages(compression, spec, shards, of_unit, layout.tensor);
    if (compression.error) bytes.parameters += 2 * messages.residual_bytes();
    bytes.whole_gradients += messages.units[unit].buffer_bytes(sharding.cuts_state());
    if (sharding.gathers_weights()) bytes.whole_weights = elements * dtype_bytes(config.precision.compute);
    for (const int32_t coded : {static_cast<int32_t>(unit), experts})
      if (coded >= 0) bytes.whole_weights += code_bytes_behind(of_unit.units[static_cast<size_t>(coded)], sharding);
    return bytes;
  };
  return {bytes_of(UnitPart::embedding), bytes_of(UnitPart::head), {bytes_of(UnitPart::block)}};
}

LayoutCosts::MessageCost LayoutCosts::message(const RunLayout& layout, int64_t bytes) {
  if (layout.pipeline == 1) return {};
  const MeshKey key = mesh_key(layout);
  auto found = of_meshes_.find(key);
  if (found == of_meshes_.end()) {
    const RunConfig config = with_layout(config_, layout);
    found =
        of_meshes_
            .emplace(key, EventTimes(machine_, config, config.run.threads, make_mesh(config, layout.world_size()), 0))
            .first;
  }
  const auto seconds = [&](LaneKind lane, GroupKind group, Operation operation, int64_t moved) {
    return found->second.seconds_of({.kind = Event::Kind::collective,
                                     .channel = {static_cast<int8_t>(lane), static_cast<int8_t>(group)},
                                     .name = operation_name(operation),
                                     .bytes_moved = moved});
  };
  const bool is_shared = layout.tensor > 1 && !layout.sequence;
  return {.transfer =
              seconds(LaneKind::send_next, GroupKind::next, Operation::send, is_shared ? bytes / layout.tensor : bytes),
          .gather = is_shared ? seconds(LaneKind::tensor, GroupKind::tensor, Operation::all_gather, bytes) : 0};
}

}  // namespace gptrain::planner
