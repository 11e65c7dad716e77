#include "step/step_parts.h"

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "optim/placed_optimizer.h"
#include "optim/types.h"
#include "step/save_buffer.h"

namespace gptrain::inline step {

StepParts::StepParts(std::shared_ptr<const StepDesign> of, Backend& ops, RankGroups& rank_groups,
                     const UpdateDevice& updates)
    : design(std::move(of)),
      beside_gpu(updates_beside_gpu(design->choices, ops.target())),
      backend(ops),
      update_backend(updates.backend != nullptr ? *updates.backend : ops),
      groups(rank_groups),
      copy_queue(ops.make_side_queue()),
      readback(ops, copy_queue.get(), design->statistics.num_sums()),
      gathers(design->spec->units.size(), Lane::done),
      initial_statistics(design->statistics.initial_values()),
      program(design->programs.size() - 1) {
  const StepMemory& memory = design->memory;
  allocate(updates);
  const int64_t scratch = align_up(memory.scratch_bytes);
  backend.set_scratch(arena(MemoryClass::workspace), scratch);
  const bool has_update_memory = design->choices.updates_on_host || beside_gpu;
  const int64_t update_scratch = align_up(memory.update_scratch_bytes);
  const int64_t frames = memory.arenas[MemoryClass::workspace] - scratch - (has_update_memory ? 0 : update_scratch);
  workspace = Workspace(arena(MemoryClass::workspace) + scratch, frames);
  if (updates.backend != nullptr)
    update_backend.set_scratch(has_update_memory ? memory_of_updates(MemoryClass::workspace).data()
                                                 : arena(MemoryClass::workspace) + scratch + frames,
                               update_scratch);
  state = reinterpret_cast<StepState*>(arena(MemoryClass::state));
  backend.upload(state, &host_state, sizeof(StepState));

  make_parameters();
  if (parameters->state_layout().any_away() || beside_gpu) make_update_lane(updates);
  model = make_model(*design, design->training_shape, backend, groups, &overflow);
  evaluation_model = make_model(*design, design->evaluation_shape, backend, groups, &overflow);
  make_compression();
  make_update();
  make_executors();
}

void StepParts::make_parameters() {
  // Beside a GPU the device has the state of units at home, the host that of others.
  const bool on_both = beside_gpu && memory_of(MemoryClass::optimizer).bytes() > 0;
  std::byte* const of_updates = memory_of_updates(MemoryClass::optimizer).data();
  const auto make = [&](std::byte* staged) {
    return std::make_unique<ParameterStore>(*design->spec, *design->shards, design->layout, design->sharding,
                                            ParameterBuffers{
                                                .weights = arena(MemoryClass::weights),
                                                .updated = updated_weights(),
                                                .gradients = arena(MemoryClass::gradients),
                                                .master = memory_of_updates(MemoryClass::master).data(),
                                                .state = on_both ? arena(MemoryClass::optimizer) : of_updates,
                                                .landing = on_both ? of_updates : nullptr,
                                                .staged = staged,
                                            },
                                            design->columns, design->choices.optimizer_state);
  };
  parameters = make(nullptr);
  if (beside_gpu)
    staged_parameters = make(memory_of_updates(MemoryClass::buckets).data() + HostSlots::bytes(*parameters));
}

void StepParts::make_compression() {
  if (!design->messages.any_coded()) return;
  const StepConfig& config = design->config;
  compression = std::make_unique<GradientCompression>(
      GradientCompression{.messages = design->messages,
                          .residuals = reinterpret_cast<std::byte*>(residuals_at(0)),
                          .errors = reinterpret_cast<std::byte*>(residuals_at(1)),
                          .state = state,
                          .rank = config.compression().rank,
                          .factors = config.compression().alternate ? FactorSums::left : FactorSums::both,
                          .seed = design->config.run.seed});
  if (config.optimizer.type == OptimizerKind::onebit_adam) compression->momenta = momentum_sums(config.optimizer);
  if (config.optimizer.sends_signs()) compression->server_errors = server_errors_column;
}

void StepParts::use(size_t number) {
  program = number;
  const StepProgram& of_steps = design->programs[number];
  optimizer->expect_sums(of_steps.is_alone     ? SumsOfStep::none
                         : of_steps.compresses ? SumsOfStep::compressed
                                               : SumsOfStep::plain,
                         design->messages);
}

// Returns the place of weights that updates write if these are not the ops' weights; else null.
std::byte* StepParts::updated_weights() const {
  if (design->choices.updates_on_host) return memory_of_updates(MemoryClass::weights).data();
  if (!design->sharding.separate_updated_weights) return nullptr;
  const ParameterBytes bytes = parameter_bytes(design->layout, design->sharding, design->columns);
  return arena(MemoryClass::weights) + align_up(bytes.weights);
}

void StepParts::make_update() {
  const StepConfig& config = design->config;
  const bool has_update_memory = design->choices.updates_on_host || beside_gpu;
  const OptimizerType& type = optimizer_type(config.optimizer.type);
  const int64_t loss_scale_window = config.precision.scales_loss() ? config.precision.loss_scale_window : 0;
  const UpdateContext context{
      .parameters = *parameters, .state = state, .backend = backend, .groups = groups, .workspace = workspace};
  std::byte* const block = arena(MemoryClass::state);
  const StateTables& tables = design->tables;
  std::byte* const update_state = has_update_memory ? memory_of_updates(MemoryClass::state).data()
                                  : lane != nullptr ? block + tables.update_state
                                                    : block;
  const UpdateContext update_context{.parameters = beside_gpu ? *staged_parameters : *parameters,
                                     .state = reinterpret_cast<StepState*>(update_state),
                                     .backend = lane != nullptr ? lane->backend() : update_backend,
                                     .groups = groups,
                                     .workspace = workspace,
                                     .away = away.get(),
                                     .compression = compression.get(),
                                     .exchange = arena(MemoryClass::residuals) + residual_bytes(),
                                     .on_host_of_gpu = beside_gpu};
  statistics = {.layout = &design->statistics, .block = block + tables.statistics};
  AgreementRules rules{.clip_norm = config.optimizer.clip_norm,
                       .loss_scale_window = loss_scale_window,
                       .statistics = design->statistics.reductions(statistics.block),
                       .whole = measures_whole(config.optimizer)};
  if (config.optimizer.qk_clip > 0) {
    qk_clip = std::make_unique<QkClip>(context, config.optimizer.qk_clip, statistics.find(head_scores_statistic),
                                       block + tables.qk_clip);
    rules.qk_clip = qk_clip.get();
  }
  if (config.model.moe.is_on() && config.model.moe.follows_loads())
    router_balance = std::make_unique<RouterBalance>(context, config.model.moe.router_bias_rate,
                                                     statistics.find(routing_statistic), block + tables.router_balance);
  if (config.precision.amax_history > 0) {
    const AmaxHistory::Design history(config.precision, config.model, config.batch.global);
    amax_history = std::make_unique<AmaxHistory>(context, history, statistics.find(fp8_amax_statistic),
                                                 block + tables.amax_history);
    rules.amax_history = amax_history.get();
  }
  agreement =
      std::make_unique<StepAgreement>(context, std::move(rules), block + tables.agreement, groups, copy_queue.get());
  const uint64_t seed = design->config.run.seed;
  const UpdateSite site{context, update_context, lane.get()};
  optimizer = type.make(config.optimizer, update_context, seed,
                        has_update_memory ? update_state + align_up(sizeof(StepState)) : block + tables.optimizer);
  if (beside_gpu && parameters->updates_at_home())
    optimizer = std::make_unique<PlacedOptimizer>(type.make(config.optimizer, context, seed, block + tables.optimizer),
                                                  std::move(optimizer), site);
  if (design->sharding.gradients != DType::f32) {
    accumulated =
        std::make_unique<AccumulatedGradients>(*parameters, design->config.run.seed, config.batch.accumulation,
                                               block + tables.accumulated_gradients, state, backend);
  }
  use(program);
  update = std::make_unique<StepUpdate>(*agreement, *optimizer, site,
                                        StepUpdate::After{qk_clip.get(), router_balance.get()});
}

void StepParts::make_executors() {
  const StepConfig& config = design->config;
  if (copy_queue != nullptr) {
    const DeviceMemory& data = memory_of(MemoryClass::data);
    uploads = std::make_unique<MicroBatchUploads>(
        *copy_queue, data.data() + data.bytes() - landing_bytes(config, backend.target()), micro_batch_shape(config));
  }
  average = optimizer->average();
  if (config.parallel.local_steps.is_on()) {
    islands = std::make_unique<IslandAverage>(config.parallel.local_steps, *parameters, groups, backend,
                                              reinterpret_cast<float*>(arena(MemoryClass::residuals)));
    average = islands.get();
  }
  ExecutorResources resources{.arenas = arena_starts(),
                              .state = state,
                              .statistics = statistics,
                              .amax_forecast = amax_history ? amax_history->forecast() : nullptr,
                              .workspace = &workspace,
                              .backend = &backend,
                              .groups = &groups,
                              .gathers = &gathers,
                              .weight_reads = weight_reads.get(),
                              .away_gradients = away_gradients.get(),
                              .accumulated = accumulated.get(),
                              .average = average,
                              .uploads = uploads.get(),
                              .offloads = offloads ? &*offloads : nullptr};
  for (const StepProgram& of_steps : design->programs) {
    resources.compression = of_steps.compresses || of_steps.is_alone ? compression.get() : nullptr;
    resources.sums_over_islands = of_steps.over_islands;
    resources.sums_right = of_steps.sums_right;
    resources.is_alone = of_steps.is_alone;
    executors.push_back(std::make_unique<Executor>(*model, *of_steps.program, *parameters, resources, update.get()));
  }
  resources.compression = nullptr;
  resources.sums_over_islands = false;
  resources.is_alone = false;
  resources.statistics = {};
  evaluation_executor =
      std::make_unique<Executor>(*evaluation_model, *design->evaluation, *parameters, resources, nullptr);
}

StepParts::~StepParts() {
  try {
    groups.wait_all();
    backend.synchronize();
  } catch (const std::exception&) {
    // A failed group was reported by the wait that found it, and its transfers are over.
  }
}

void StepParts::make_update_lane(const UpdateDevice& updates) {
  WorkingFiles* const files = updates.files;
  if (updates.gpu != nullptr) copies = std::make_unique<UpdateCopies>(*updates.gpu, *parameters, *staged_parameters);
  lane =
      std::make_unique<UpdateLane>(*parameters, update_backend, groups, files, copies.get(), beside_gpu, updates.cores);
  away = std::make_unique<AwayState>(*parameters, groups, files, copies.get(), beside_gpu, [this] { lane->suspend(); });
  const Sharding& sharding = design->sharding;
  const HostSlots slots(*parameters, beside_gpu ? memory_of_updates(MemoryClass::buckets).data() : nullptr);
  if (sharding.weights_away())
    weight_reads = std::make_unique<WeightReads>(*parameters, groups, files, updates.gpu, slots, *lane);
  if (files != nullptr && !beside_gpu) lend_memory(*files);
  if (sharding.gradients_away)
    away_gradients = std::make_unique<AwayGradients>(*parameters, groups, backend, files, updates.gpu, slots);
}

// Lends `files` the memory of their reads and writes.
void StepParts::lend_memory(WorkingFiles& files) const {
  const auto part = [](std::byte* start, int64_t bytes) { return std::span(start, static_cast<size_t>(bytes)); };
  const StateLayout& layout = parameters->state_layout();
  std::vector memory = {
      part(memory_of_updates(MemoryClass::optimizer).data() + layout.home_bytes(), layout.landing_bytes())};
  if (design->sharding.weights_away())
    memory.push_back(part(arena(MemoryClass::weights), parameters->weight_slots().bytes()));
  if (design->sharding.gradients_away)
    memory.push_back(part(arena(MemoryClass::gradients), parameters->gradient_slots().bytes()));
  files.lend(memory);
}

void StepParts::wait_all() const {
  if (lane != nullptr) lane->drain();
  groups.wait_all();
}

int64_t StepParts::residual_bytes() const {
  return design->keeps_residuals() ? 2 * design->messages.residual_bytes() : 0;
}

float* StepParts::residuals_at(int64_t buffer) const {
  if (!design->keeps_residuals()) return nullptr;
  return reinterpret_cast<float*>(arena(MemoryClass::residuals)) + buffer * design->messages.num_residuals;
}

MemoryPlan StepParts::taken() const {
  MemoryPlan taken = memory_outside(design->config, backend.target(), groups.exchanged_bytes());
  for (size_t place = 0; place < num_memory_places; ++place) {
    MemoryPlan::ByClass& bytes = taken.on(static_cast<MemoryPlace>(place));
    for (size_t c = 0; c < num_memory_classes; ++c)
      if (arenas[place][c]) bytes[c] += arenas[place][c]->bytes();
  }
  MemoryPlan beside;  // state that is away
  parameters->state_layout().add_away(beside);
  beside.on(MemoryPlace::disk)[MemoryClass::snapshot] = snapshot ? design->cloned_bytes : 0;
  taken += beside;
  // The arena of optimizer state has all that is away on the host.
  taken.on(MemoryPlace::pinned_host)[MemoryClass::optimizer] -= beside.total(MemoryPlace::pinned_host);
  taken.on(host_place(backend.target()))[MemoryClass::snapshot] +=
      (snapshot ? snapshot->bytes() : 0) + save_buffer_bytes(design->choices);
  return taken;
}

void StepParts::allocate(const UpdateDevice& updates) {
  const StepMemory& memory = design->memory;
  for (size_t c = 0; c < num_memory_classes; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    const MemoryPlace place = arena_place(memory_class, backend.target());
    const int64_t bytes = memory.arenas.on(place)[c] - memory.outside.on(place)[c];
    const bool is_offloaded = memory_class == MemoryClass::offloaded && bytes > 0;
    arenas_on(place)[c] = is_offloaded ? offloads.emplace(backend).allocate(bytes) : backend.allocate(bytes);
  }
  const MemoryPlace place = place_of_updates(design->choices, backend.target());
  if (place != MemoryPlace::device) allocate_for_updates(place, updates);
}

// Takes the arenas of updates that have memory of their own: on the host of a GPU one that it copies to and from.
void StepParts::allocate_for_updates(MemoryPlace place, const UpdateDevice& updates) {
  const MemoryPlan::ByClass &arenas_there = design->memory.arenas.on(place),
                            &outside = design->memory.outside.on(place);
  const auto planned = [&](MemoryClass c) { return arenas_there[c] - outside[c]; };
  const auto take = [&](MemoryClass c, int64_t bytes) {
    const bool is_copied = updates.gpu != nullptr;
    arenas_on(place)[c] = is_copied
                              ? memory_for("memory.offload_optimizer", [&] { return copy_queue->allocate_host(bytes); })
                              : update_backend.allocate(bytes);
  };
  for (const MemoryClass c : {MemoryClass::workspace, MemoryClass::state}) take(c, planned(c));
  if (!beside_gpu) {
    for (const MemoryClass c : {MemoryClass::weights, MemoryClass::master, MemoryClass::optimizer}) take(c, planned(c));
    return;
  }
  // Masters, weights and gradients of a unit that is away lie beside its optimizer state.
  take(MemoryClass::optimizer, planned(MemoryClass::optimizer) + planned(MemoryClass::master) +
                                   planned(MemoryClass::weights) + planned(MemoryClass::gradients));
  take(MemoryClass::buckets, planned(MemoryClass::buckets));
}

const DeviceMemory& StepParts::memory_of(MemoryClass c) const { return *arenas[arena_place(c, backend.target())][c]; }

const DeviceMemory& StepParts::memory_of_updates(MemoryClass c) const {
  const std::unique_ptr<DeviceMemory>& own = arenas[place_of_updates(design->choices, backend.target())][c];
  return own != nullptr ? *own : memory_of(c);
}

void StepParts::return_weights(int64_t unit) {
  if (design->sharding.updates_weights()) return;  // the device's weights have no masters
  if (parameters->state_layout().lands(unit)) away->fetch(unit);
  if (staged_parameters->update_range(unit).elements == 0) return;
  copies->clear(unit);
  const bool has_rounded = round_masters(*staged_parameters, unit, update_backend);
  if (has_rounded && design->sharding.weights_away() && parameters->state_layout().lands(unit)) away->change();
  copy_norms(*staged_parameters, unit, update_backend);
  copies->upload(unit, backend);
}

bool StepParts::is_on_host(const void* value) const {
  if (!beside_gpu) return false;
  if (is_away_address(value)) return true;
  const DeviceMemory& memory = memory_of_updates(MemoryClass::optimizer);
  const auto* const at = static_cast<const std::byte*>(value);
  return !std::less<>()(at, memory.data()) && std::less<>()(at, memory.data() + memory.bytes());
}

ArenaStarts StepParts::arena_starts() const {
  ArenaStarts starts;
  for (size_t place = 0; place < num_memory_places; ++place)
    for (size_t c = 0; c < num_memory_classes; ++c)
      if (arenas[place][c])
        starts.at(static_cast<MemoryPlace>(place), static_cast<MemoryClass>(c)) = arenas[place][c]->data();
  return starts;
}

}  // namespace gptrain::step
