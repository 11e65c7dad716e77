#include "step/step_design.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/kinds.h"
#include "config/axis_sizes.h"
#include "config/node_groups.h"
#include "config/parallelism.h"
#include "model/micro_batch.h"
#include "ops/plan/plan_backend.h"
#include "optim/amax_history.h"
#include "optim/step_agreement.h"
#include "optim/types.h"
#include "parallel/accumulated_gradients.h"
#include "parallel/away_clone.h"
#include "parallel/away_state.h"
#include "parallel/gradient_sums.h"
#include "parallel/host_slots.h"
#include "parallel/island_average.h"
#include "parallel/make_stages.h"
#include "parallel/micro_batch_uploads.h"
#include "step/save_buffer.h"
#include "step/step_readback.h"

namespace gptrain::inline step {
namespace {

bool has_own_memory(const Target& target) { return target.kind == Target::Kind::gpu; }

int64_t micro_batch_bytes(const StepConfig& config) { return micro_batch_shape(config).bytes(); }

StepShape step_shape(const RunConfig& config, const StepChoices& choices, ContextRank context, bool training) {
  std::vector<SavedPart> saved_parts;
  for (size_t unit = 1; unit + 1 < choices.units.size(); ++unit)
    saved_parts.push_back(choices.units[unit].saves_part ? choices.layers.saved_part : SavedPart::nothing);
  LayerChoices layers = choices.layers;
  if (!training) layers.projection = {};
  return {.model = config.model,
          .precision = config.precision,
          .batch = config.batch.micro,
          .sequence_length = config.model.sequence_length,
          .sequences_of_step = config.batch.global,
          .seed = config.run.seed,
          .training = training,
          .mask_documents = config.data.mask_documents,
          .max_documents = config.data.max_documents,
          .deterministic = config.run.deterministic,
          .saved_parts = std::move(saved_parts),
          .choices = std::move(layers),
          .context = context};
}

bool has_masters(const PrecisionConfig& precision) { return precision.compute != DType::f32 && !precision.pure; }

// Returns the sharding. With one rank that holds the parameters, ZeRO is off.
Sharding make_sharding(const StepConfig& config, const StepChoices& choices, const RankGroups& groups) {
  const ReplicaRank data = groups.replica_rank(ReplicaGroup::data);
  return {.zero = data.size > 1 ? config.parallel.zero : 0,
          .weights = choices.weights,
          .separate_updated_weights = choices.updates_on_host || choices.updates_delayed,
          .updates_delayed = choices.updates_delayed,
          .masters_away = choices.keeps_state_away() && has_masters(config.precision),
          .gradients_away = choices.gradients_away,
          .landed_units = choices.landed_units,
          .replica_ranks = {data, groups.replica_rank(ReplicaGroup::expert_data)},
          .compute = config.precision.compute,
          .reduce = config.precision.reduce,
          .pure = config.precision.pure,
          .codes_weights = data.size > 1 && config.codes_weights(),
          .gradients = config.precision.gradients};
}

ScheduleOptions schedule_options(const StepDesign& design, const Model& model, const StepProgram& program) {
  const bool compresses = program.compresses;
  const UnitChoices& choices = design.choices.units;
  const bool keeps_narrow = design.sharding.gradients != DType::f32 || design.sharding.gradients_away;
  const bool in_islands = program.over_islands && design.sharding.replica_rank(ReplicaGroup::data).size > 1;
  const int phases = in_islands ? 2 : compresses ? design.messages.phases(design.sharding.cuts_state()) : 1;
  ScheduleOptions options{.micro_batches = static_cast<int32_t>(design.config.batch.accumulation),
                          .units = std::vector<UnitTraits>(model.num_layers()),
                          .stages = design.stages,
                          .flow = design.sharding.flow(),
                          .narrow_sums = design.sharding.narrows_gradients() || compresses,
                          .tied_head = design.config.model.tied_head,
                          .joint_backward = design.tensor.size > 1,
                          .keeps_narrow = keeps_narrow,
                          .sums_under_way = 1 + phases,
                          .sums_alone = keeps_narrow && design.sharding.replica_rank(ReplicaGroup::data).size == 1 &&
                                        design.tensor.size == 1,
                          .averages = program.averages};
  for (size_t unit = 0; unit < options.units.size(); ++unit) {
    options.units[unit].kind = design.spec->units[unit].kind;
    if (in_islands || (compresses && design.messages.units[unit].is_coded()))
      options.units[unit].sum_phases = static_cast<int8_t>(phases);
    set_recomputed(options.units[unit], static_cast<int32_t>(unit), choices[unit]);
    const LayerRecords& records = model.records(static_cast<int64_t>(unit));
    options.units[unit].uses = records.uses;
    options.units[unit].prepares_weights = records.fp8_weights_bytes > 0;
  }
  return options;
}

// Returns the bytes of a layer's parameters in buffers: of its unit, and behind it of its experts.
UnitBufferBytes parameter_buffer_bytes(const StepDesign& design, size_t unit, bool compresses) {
  UnitBufferBytes bytes = unit_buffer_bytes(design.layout.units[unit], design.sharding);
  if (compresses) bytes.narrow_gradients = design.messages.units[unit].buffer_bytes(design.sharding.cuts_state());
  const int64_t experts = design.spec->units[unit].experts;
  if (experts < 0) return bytes;
  const UnitBufferBytes more = unit_buffer_bytes(design.layout.units[experts], design.sharding);
  bytes.weights += more.weights;
  bytes.whole_gradients += more.whole_gradients;
  bytes.narrow_gradients += more.narrow_gradients;
  return bytes;
}

BufferBytes buffer_bytes(const StepDesign& design, const std::vector<UnitTraits>& units, const Model& model,
                         bool compresses) {
  BufferBytes bytes;
  const auto of = [&bytes](BufferKind kind) -> std::vector<int64_t>& { return bytes[kind]; };
  for (int64_t unit = 0; unit < model.num_layers(); ++unit) {
    const UnitBufferBytes parameters = parameter_buffer_bytes(design, static_cast<size_t>(unit), compresses);
    const LayerRecords& records = model.records(unit);
    of(BufferKind::batch).push_back(model.shape().micro_batch().bytes());
    of(BufferKind::stream).push_back(model.stream_bytes());
    of(BufferKind::saved_for_recompute).push_back(records.saved_for_recompute_bytes);
    of(BufferKind::saved_for_input).push_back(records.saved_for_input_bytes);
    of(BufferKind::saved_for_weight).push_back(records.saved_for_weight_bytes);
    of(BufferKind::gradients).push_back(records.gradients_bytes);
    of(BufferKind::stream_gradient).push_back(model.stream_gradient_bytes(unit));
    // Buffers that the schedule does not use get 0 bytes, so that ranks that differ only there share a program.
    of(BufferKind::weights).push_back(parameters.weights);
    of(BufferKind::prepared_weights).push_back(records.fp8_weights_bytes);
    of(BufferKind::whole_gradients).push_back(parameters.whole_gradients);
    of(BufferKind::narrow_gradients).push_back(parameters.narrow_gradients);
    const UnitTraits& traits = units[unit];
    of(BufferKind::offloaded)
        .push_back(traits.offload.any() ? record_bytes(bytes, traits, static_cast<int32_t>(unit)) : 0);
  }
  return bytes;
}

// Makes the part of the design about parameters: the model and this rank's share of it.
StepDesign begin_design(const RunConfig& config, const RankGroups& groups, const Stages& stages,
                        const Sharding& sharding, const StateColumns& columns) {
  StepDesign design;
  design.config = config;
  design.tensor = groups.on_tensor_axis();
  design.experts = groups.on_expert_axis();
  design.stages = stages;
  design.sequence = design.tensor.size > 1 && config.parallel.sequence;
  design.spec = shared_spec(config.model, design.experts.size > 1);
  design.shards = shared_shards(design.spec, design.tensor, design.experts);
  design.sharding = sharding;
  ScheduleOptions held;
  held.stages = stages;
  held.tied_head = config.model.tied_head;
  if (held.table_twice() && stages.last()) {
    auto shards = std::make_shared<std::vector<TensorShard>>(*design.shards);
    keep_table_copy(*design.spec, *shards);
    design.shards = std::move(shards);
  }
  std::vector<bool> holds(design.spec->units.size());
  for (size_t unit = 0; unit < holds.size(); ++unit) {
    const Unit& kind = design.spec->units[unit];
    const int64_t with = kind.kind == UnitKind::experts ? kind.layer + 1 : static_cast<int64_t>(unit);
    holds[unit] = held.holds(static_cast<int32_t>(with));
  }
  design.columns = columns;
  design.layout = make_layout(*design.spec, *design.shards, sharding.replica_counts(), design.sequence, holds,
                              held.table_twice(), unit_end_for(design.columns));
  return design;
}

// Returns for each unit the first unit of equal design.
std::vector<int32_t> find_equal_designs(const Model& model) {
  std::vector<int32_t> firsts, alike;
  for (int32_t unit = 0; unit < model.num_layers(); ++unit) {
    const auto same = std::find_if(firsts.begin(), firsts.end(), [&](int32_t first) {
      return model.layer(first).design() == model.layer(unit).design();
    });
    alike.push_back(same == firsts.end() ? unit : *same);
    if (same == firsts.end()) firsts.push_back(unit);
  }
  return alike;
}

// Returns the number of pieces in which products alternate with the tensor ranks' exchange of their rows: four, or two
// if products of a fourth would have too few rows to be fast.
int64_t pieces_of_products(const StepDesign& design, const StepShape& shape) {
  constexpr int64_t fast_rows = 256;
  if (!design.config.parallel.overlap_tensor || design.tensor.size == 1) return 1;
  const int64_t rows = design.sequence ? shape.rows() / design.tensor.size : shape.rows();
  return rows >= 4 * fast_rows ? 4 : 2;
}

// Returns a design's axes without groups.
Model::Axes axes_of(const StepDesign& design, const StepShape& shape) {
  return {.tensor = {design.tensor, design.sequence, pieces_of_products(design, shape)},
          .context = {shape.context},
          .experts = {.axis = design.experts,
                      .capacity_factor = design.config.parallel.expert_room,
                      .drops = design.config.parallel.expert_overflow == ExpertOverflowRule::drop}};
}

// Makes a model on the `plan` backend without groups, to ask its layers for their records.
Model planned_model(const StepDesign& design, const StepShape& shape, PlanBackend& backend) {
  const Model::Axes axes = axes_of(design, shape);
  return {shape, *design.spec, *design.shards, design.layout, axes, backend};
}

// Returns the bytes of an arena that the design's programs share.
int64_t largest_of_programs(const StepDesign& design, MemoryPlace place, size_t memory_class) {
  int64_t bytes = design.evaluation->memory.on(place)[memory_class];
  for (const StepProgram& of_step : design.programs)
    bytes = std::max(bytes, of_step.program->memory.on(place)[memory_class]);
  return bytes;
}

}  // namespace

MicroBatchShape micro_batch_shape(const StepConfig& config, int64_t context_rank) {
  return {config.batch.micro, config.model.sequence_length, config.data.mask_documents,
          context_rank_at(config.parallel, context_rank)};
}

PrefetchRing prefetch_ring(const StepConfig& config, const Target& target) {
  constexpr int read_ahead = 3;
  const int64_t in_flight =
      std::min(StepReadback::most_ahead * config.batch.accumulation, MicroBatchUploads::most_retained);
  const int retained = has_own_memory(target) ? static_cast<int>(in_flight) : 1;
  return {retained, retained + read_ahead};
}

int64_t prefetch_ring_bytes(const StepConfig& config, const Target& target) {
  return Prefetcher::bytes(micro_batch_shape(config), prefetch_ring(config, target));
}

int64_t all_rings_bytes(const StepConfig& config, const Target& target) {
  return (config.data.validation.empty() ? 1 : 2) * prefetch_ring_bytes(config, target);
}

Target update_target(const MemoryConfig& memory, const Target& target) {
  Target updates = target;
  updates.kind = Target::Kind::cpu;
  if (memory.update_threads > 0) updates.num_threads = static_cast<int>(memory.update_threads);
  return updates;
}

MemoryPlace host_place(const Target& target) {
  return has_own_memory(target) ? MemoryPlace::pinned_host : MemoryPlace::device;
}

MemoryPlace arena_place(MemoryClass memory_class, const Target& target) {
  return memory_class == MemoryClass::offloaded ? host_place(target) : MemoryPlace::device;
}

MemoryPlan memory_outside(const StepConfig& config, const Target& target, const ExchangeBytes& exchanged) {
  MemoryPlan memory;
  memory.on(host_place(target))[MemoryClass::data] = all_rings_bytes(config, target);
  for (size_t place = 0; place < num_memory_places; ++place)
    memory.on(static_cast<MemoryPlace>(place))[MemoryClass::communication] = exchanged[place];
  return memory;
}

int64_t landing_bytes(const StepConfig& config, const Target& target) {
  return has_own_memory(target) ? micro_batch_bytes(config) : 0;
}

std::vector<Statistic> step_statistics(const StepConfig& config) {
  std::vector<Statistic> statistics;
  if (config.optimizer.qk_clip > 0) {
    statistics.push_back(
        {std::string(head_scores_statistic), StatisticKind::largest, config.model.num_layers * config.model.num_heads});
  }
  if (config.precision.amax_history > 0) {
    statistics.push_back(
        {std::string(fp8_amax_statistic), StatisticKind::largest, num_fp8_amaxes(config.model.num_layers)});
  }
  const MoeConfig& moe = config.model.moe;
  if (moe.is_on()) {
    int64_t layers = 0;
    for (int64_t layer = 0; layer < config.model.num_layers; ++layer) layers += moe.is_at(layer) ? 1 : 0;
    statistics.push_back({std::string(routing_statistic), StatisticKind::sum, layers * num_routing_sums(moe.experts)});
  }
  return statistics;
}

void declare_statistics(StepDesign& design, std::vector<Statistic> statistics) {
  design.statistics = StatisticsLayout(std::move(statistics));
  design.memory.arenas[MemoryClass::state] = design.tables.statistics + design.statistics.bytes();
}

void set_recomputed(UnitTraits& traits, int32_t unit, const UnitChoice& choice) {
  traits.recomputed = choice.recompute_from >= 0 && traits.kind == UnitKind::block;
  traits.recompute_from = traits.recomputed && choice.recompute_from < unit ? choice.recompute_from : -1;
  if (traits.kind == UnitKind::block) traits.offload = choice.offload;
}

std::unique_ptr<Model> make_model(const StepDesign& design, const StepShape& shape, Backend& backend,
                                  RankGroups& groups, ExpertOverflow* overflow) {
  Model::Axes axes = axes_of(design, shape);
  if (design.tensor.size > 1) {
    axes.tensor.group = groups.group(LaneKind::tensor, GroupKind::tensor);
    axes.tensor.lane = &groups.lane(LaneKind::tensor);
  }
  if (shape.context.size > 1) {
    axes.context.group = groups.group(LaneKind::context, GroupKind::context);
    axes.context.lane = &groups.lane(LaneKind::context);
  }
  if (design.experts.size > 1) {
    axes.experts.group = groups.group(LaneKind::expert, GroupKind::expert);
    axes.experts.lane = &groups.lane(LaneKind::expert);
    axes.experts.overflow = overflow;
  }
  return std::make_unique<Model>(shape, *design.spec, *design.shards, design.layout, axes, backend);
}

MemoryPlace place_of_updates(const StepChoices& choices, const Target& target) {
  if (choices.updates_on_host) return MemoryPlace::host;
  return choices.keeps_state_away() ? host_place(target) : MemoryPlace::device;
}

bool updates_beside_gpu(const StepChoices& choices, const Target& target) {
  return choices.keeps_state_away() && has_own_memory(target);
}

namespace {

// Plans the memory of asynchronous checkpoints, and the bytes that they clone.
void plan_snapshot(StepDesign& design, const ParameterStore& store, bool writes_factors) {
  if (design.choices.clones_files && design.choices.keeps_state_on_disk()) {
    std::vector<StoredPiece> pieces = stored_pieces(store);
    pieces.resize(num_saved_pieces(store));
    design.cloned_bytes = stored_bytes(pieces);
    design.snapshot_bytes = AwayClone::memory_bytes(store);
  }
  design.snapshot_bytes += store.snapshot_bytes(design.cloned_bytes > 0) +
                           (design.keeps_residuals() ? design.messages.snapshot_bytes(writes_factors) : 0);
}

// THROWS Error(usage) if gradients of two micro-batches of a unit are in buckets at the same time, while each bucket
// begins with the sum of the micro-batches before.
void check_sums_away(const StepDesign& design) {
  if (!design.sharding.buckets_hold_sums()) return;
  std::vector<int32_t> ends(design.spec->units.size(), -1);
  for (const Buffer& buffer : design.training->schedule.buffers) {
    if (buffer.kind != BufferKind::whole_gradients) continue;
    int32_t& end = ends[buffer.unit];
    if (buffer.first < end)
      throw Error(ExitCode::usage,
                  "memory.offload_gradients = \"{}\": cannot be combined with parallel.pipeline_schedule = \"{}\" and "
                  "one data rank, as gradients of two micro-batches of a layer are computed at the same time (try "
                  "\"1f1b\")",
                  state_place_name(design.config.memory.offload_gradients),
                  pipeline_order_names[design.config.parallel.pipeline_schedule]);
    end = std::max(end, buffer.last);
  }
}

}  // namespace

StepDesign design_step(const RunConfig& config, const Target& target, const RankGroups& groups, StepChoices choices,
                       const std::shared_ptr<const Program>& like) {
  const Stages stages = make_stages(config, groups.stage(), config.batch.accumulation, choices.backward_recomputes);
  StepDesign design =
      begin_design(config, groups, stages, make_sharding(config, choices, groups), state_columns(config));
  design.choices = std::move(choices);
  const int64_t of_residual = ranks_of_residual(config);
  design.messages = make_gradient_messages(config.compression(), *design.spec, *design.shards, design.layout,
                                           design.tensor.size, {of_residual, groups.data_rank() % of_residual});
  design.context = groups.on_context_axis();
  design.training_shape = step_shape(config, design.choices, design.context, true);
  design.evaluation_shape = step_shape(config, design.choices, design.context, false);
  PlanBackend backend(target);
  {
    const Model model = planned_model(design, design.training_shape, backend);
    design.first_equal_unit = find_equal_designs(model);
    for (StepProgram& program : programs_of(config, config.run.steps, design.messages.any_coded())) {
      const ScheduleOptions options = schedule_options(design, model, program);
      BufferBytes bytes = buffer_bytes(design, options.units, model, program.compresses);
      const bool is_like = like != nullptr && like->schedule.options == options && like->bytes == bytes;
      program.program = is_like ? like : make_program(training_schedule(options), std::move(bytes), host_place(target));
      design.programs.push_back(std::move(program));
    }
    design.training = design.programs.back().program;
    check_sums_away(design);
  }
  {
    const Model model = planned_model(design, design.evaluation_shape, backend);
    ScheduleOptions options = schedule_options(design, model, StepProgram{});
    options.micro_batches = 1;
    design.evaluation = make_program(evaluation_schedule(options), buffer_bytes(design, options.units, model, false),
                                     host_place(target));
  }
  MemoryPlan& memory = design.memory.arenas;
  for (const MemoryPlace place : {MemoryPlace::device, MemoryPlace::pinned_host})
    for (size_t c = 0; c < num_memory_classes; ++c) memory.on(place)[c] = largest_of_programs(design, place, c);
  const ParameterBytes parameters = parameter_bytes(design.layout, design.sharding, design.columns);
  const ParameterStore store(*design.spec, *design.shards, design.layout, design.sharding, {}, design.columns,
                             design.choices.optimizer_state);
  const bool on_host = design.choices.updates_on_host, beside_gpu = updates_beside_gpu(design.choices, target);
  memory[MemoryClass::weights] = parameters.weights + store.weight_slots().bytes();
  if (!on_host && parameters.updated > 0)
    memory[MemoryClass::weights] = align_up(memory[MemoryClass::weights]) + parameters.updated;
  memory[MemoryClass::gradients] = parameters.gradients + store.gradient_slots().bytes();
  const auto of_updates = [&](MemoryClass c) -> int64_t& {
    return memory.on(place_of_updates(design.choices, target))[c];
  };
  const bool home_on_gpu = beside_gpu && store.updates_at_home();
  const MemoryPlace home = home_on_gpu ? MemoryPlace::device : place_of_updates(design.choices, target);
  memory.on(home)[MemoryClass::master] = store.state_layout().master_bytes();
  memory.on(home)[MemoryClass::optimizer] = store.state_layout().home_bytes();
  of_updates(MemoryClass::optimizer) += store.state_layout().landing_bytes();
  const int64_t optimizer_tables = optimizer_type(config.optimizer.type).table_bytes(store);
  if (on_host) of_updates(MemoryClass::weights) = parameters.updated;
  if (on_host || beside_gpu) of_updates(MemoryClass::state) = align_up(sizeof(StepState)) + optimizer_tables;
  if (beside_gpu) of_updates(MemoryClass::buckets) += HostSlots::bytes(store) + store.staged_units().bytes();
  memory[MemoryClass::data] += landing_bytes(config, target);
  const int64_t residual_bytes = design.keeps_residuals() ? design.messages.residual_bytes() : 0;
  memory[MemoryClass::residuals] = 2 * residual_bytes;
  memory[MemoryClass::residuals] += exchange_bytes(config.optimizer, store, design.messages);
  if (config.parallel.local_steps.has_momentum())
    memory[MemoryClass::residuals] = IslandAverage::anchor_elements(store) * dtype_bytes(DType::f32);
  StateTables& tables = design.tables;
  tables.agreement = align_up(sizeof(StepState));
  tables.optimizer = tables.agreement + StepAgreement::table_bytes(store, measures_whole(config.optimizer));
  const bool updates_here = !on_host && (!beside_gpu || home_on_gpu);
  tables.accumulated_gradients = tables.optimizer + (updates_here ? optimizer_tables : 0);
  tables.qk_clip = tables.accumulated_gradients + AccumulatedGradients::table_bytes(store);
  tables.router_balance = tables.qk_clip + (config.optimizer.qk_clip > 0 ? QkClip::table_bytes(store) : 0);
  tables.amax_history = tables.router_balance + RouterBalance::table_bytes(store);
  const AmaxHistory::Design history(config.precision, config.model, config.batch.global);
  tables.update_state = tables.amax_history + (history.length > 0 ? AmaxHistory::table_bytes(history) : 0);
  const bool has_update_state = store.state_layout().any_away() && !beside_gpu;
  tables.statistics = tables.update_state + (has_update_state ? align_up(sizeof(StepState)) : 0);
  declare_statistics(design, step_statistics(config));
  design.memory.outside = memory_outside(config, target, planned_exchange_bytes(target, groups));
  if (config.checkpoint.keeps_snapshot()) plan_snapshot(design, store, groups.data_rank() == 0);
  design.memory.outside.on(host_place(target))[MemoryClass::snapshot] =
      design.snapshot_bytes + save_buffer_bytes(design.choices);
  memory += design.memory.outside;
  MemoryPlan away;
  store.state_layout().add_away(away);
  away.on(MemoryPlace::disk)[MemoryClass::snapshot] = design.cloned_bytes;
  memory += away;
  design.memory.outside.on(MemoryPlace::disk) = away.on(MemoryPlace::disk);
  return design;
}

StepDesign design_inference(const RunConfig& config, const Target& target, const RankGroups& groups, int64_t length) {
  StepDesign design = begin_design(config, groups, make_stages(config, groups.stage(), 1, false), Sharding{}, {});
  design.evaluation_shape = {.model = config.model,
                             .precision = {DType::f32, DType::f32},
                             .batch = 1,
                             .sequence_length = length,
                             .seed = 0,
                             .training = false,
                             .mask_documents = config.data.mask_documents};
  PlanBackend backend(target);
  const Model model = planned_model(design, design.evaluation_shape, backend);
  design.choices.units.resize(design.spec->units.size());
  ScheduleOptions options = schedule_options(design, model, StepProgram{});
  options.micro_batches = 1;
  design.evaluation =
      make_program(inference_schedule(options), buffer_bytes(design, options.units, model, false), host_place(target));
  design.memory.arenas = design.evaluation->memory;
  design.memory.arenas[MemoryClass::weights] = parameter_bytes(design.layout, design.sharding, {}).weights;
  return design;
}

}  // namespace gptrain::step
