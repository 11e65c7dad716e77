#include "step/step_parts.h"

#include <cstddef>
#include <exception>
#include <utility>

#include "optim/types.h"
#include "step/save_buffer.h"

namespace gptrain::inline step {

StepParts::StepParts(std::shared_ptr<const StepDesign> of, Backend& ops, RankGroups& rank_groups,
                     const UpdateDevice& updates)
    : design(std::move(of)),
      backend(ops),
      update_backend(updates.backend != nullptr ? *updates.backend : ops),
      groups(rank_groups),
      copy_queue(ops.make_side_queue()),
      readback(ops, copy_queue.get(), design->statistics.num_sums()),
      gathers(design->spec.units.size(), Lane::done),
      initial_statistics(design->statistics.initial_values()),
      program(design->programs.size() - 1) {
  const StepMemory& memory = design->memory;
  allocate();
  const int64_t scratch = align_up(memory.scratch_bytes);
  backend.set_scratch(arena(MemoryClass::workspace), scratch);
  const bool on_host = design->choices.updates_on_host;
  const int64_t update_scratch = align_up(memory.update_scratch_bytes);
  const int64_t frames = memory.arenas[MemoryClass::workspace] - scratch - (on_host ? 0 : update_scratch);
  workspace = Workspace(arena(MemoryClass::workspace) + scratch, frames);
  if (updates.backend != nullptr)
    update_backend.set_scratch(
        on_host ? memory_of_updates(MemoryClass::workspace).data() : arena(MemoryClass::workspace) + scratch + frames,
        update_scratch);
  state = reinterpret_cast<StepState*>(arena(MemoryClass::state));
  backend.upload(state, &host_state, sizeof(StepState));

  parameters =
      std::make_unique<ParameterStore>(design->spec, design->shards, design->layout, design->sharding,
                                       ParameterBuffers{.weights = arena(MemoryClass::weights),
                                                        .updated = updated_weights(),
                                                        .gradients = arena(MemoryClass::gradients),
                                                        .master = memory_of_updates(MemoryClass::master).data(),
                                                        .state = memory_of_updates(MemoryClass::optimizer).data()},
                                       design->columns, design->choices.optimizer_state);
  if (parameters->state_layout().any_away()) make_update_lane(updates.files);
  model = make_model(*design, design->training_shape, backend, groups, &overflow);
  evaluation_model = make_model(*design, design->evaluation_shape, backend, groups, &overflow);
  make_compression();
  make_update();
  make_executors();
}

void StepParts::make_compression() {
  if (design->messages.num_residuals == 0) return;
  const StepConfig& config = design->config;
  compression = std::make_unique<GradientCompression>(
      GradientCompression{.messages = design->messages,
                          .residuals = reinterpret_cast<std::byte*>(residuals_at(0)),
                          .errors = reinterpret_cast<std::byte*>(residuals_at(1)),
                          .state = state,
                          .rank = config.compression().rank,
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

// Returns the place of weights that updates write apart from the ops' weights; null: they write those.
std::byte* StepParts::updated_weights() const {
  if (design->choices.updates_on_host) return memory_of_updates(MemoryClass::weights).data();
  if (!design->sharding.updates_apart) return nullptr;
  const ParameterBytes bytes = parameter_bytes(design->layout, design->sharding, design->columns);
  return arena(MemoryClass::weights) + align_up(bytes.weights);
}

void StepParts::make_update() {
  const StepConfig& config = design->config;
  const bool on_host = design->choices.updates_on_host;
  const OptimizerType& type = optimizer_type(config.optimizer.type);
  const int64_t loss_scale_window = config.precision.scales_loss() ? config.precision.loss_scale_window : 0;
  const UpdateContext context{
      .parameters = *parameters, .state = state, .backend = backend, .groups = groups, .workspace = workspace};
  std::byte* const block = arena(MemoryClass::state);
  const StateTables& tables = design->tables;
  std::byte* const update_state = on_host           ? memory_of_updates(MemoryClass::state).data()
                                  : lane != nullptr ? block + tables.update_state
                                                    : block;
  const UpdateContext update_context{.parameters = *parameters,
                                     .state = reinterpret_cast<StepState*>(update_state),
                                     .backend = lane != nullptr ? lane->backend() : update_backend,
                                     .groups = groups,
                                     .workspace = workspace,
                                     .away = away.get(),
                                     .compression = compression.get(),
                                     .exchange = arena(MemoryClass::residuals) + residual_bytes()};
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
  agreement =
      std::make_unique<StepAgreement>(context, std::move(rules), block + tables.agreement, groups, copy_queue.get());
  optimizer = type.make(config.optimizer, update_context, design->config.run.seed,
                        on_host ? update_state + align_up(sizeof(StepState)) : block + tables.optimizer);
  if (design->sharding.gradients != DType::f32) {
    accumulated =
        std::make_unique<AccumulatedGradients>(*parameters, design->config.run.seed, config.batch.accumulation,
                                               block + tables.accumulated_gradients, state, backend);
  }
  use(program);
  update = std::make_unique<StepUpdate>(*agreement, *optimizer, UpdateSite{context, update_context, lane.get()},
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
  ExecutorResources place{.arenas = arena_starts(),
                          .state = state,
                          .statistics = statistics,
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
    place.compression = of_steps.compresses || of_steps.is_alone ? compression.get() : nullptr;
    place.sums_over_islands = of_steps.over_islands;
    place.is_alone = of_steps.is_alone;
    executors.push_back(std::make_unique<Executor>(*model, *of_steps.program, *parameters, place, update.get()));
  }
  place.compression = nullptr;
  place.sums_over_islands = false;
  place.is_alone = false;
  place.statistics = {};
  evaluation_executor = std::make_unique<Executor>(*evaluation_model, *design->evaluation, *parameters, place, nullptr);
}

StepParts::~StepParts() {
  try {
    groups.wait_all();
    backend.synchronize();
  } catch (const std::exception&) {
    // A failed group was reported by the wait that found it, and its transfers are over.
  }
}

void StepParts::make_update_lane(WorkingFiles* files) {
  const bool beside_device = backend.target().kind == Target::Kind::gpu;
  lane = std::make_unique<UpdateLane>(*parameters, update_backend, groups, files, beside_device);
  away = std::make_unique<AwayState>(*parameters, groups, files, [this] { lane->suspend(); });
  const Sharding& sharding = design->sharding;
  if (sharding.weights_away()) weight_reads = std::make_unique<WeightReads>(*parameters, groups, files, *lane);
  if (sharding.gradients_away) away_gradients = std::make_unique<AwayGradients>(*parameters, groups, backend, files);
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
  parameters->state_layout().add_away(taken);
  taken.on(host_place(backend.target()))[MemoryClass::snapshot] +=
      (snapshot ? snapshot->bytes() : 0) + save_buffer_bytes(design->choices);
  return taken;
}

void StepParts::allocate() {
  const StepMemory& memory = design->memory;
  const auto planned = [&memory](MemoryPlace place, size_t c) {
    return memory.arenas.on(place)[c] - memory.outside.on(place)[c];
  };
  for (size_t c = 0; c < num_memory_classes; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    const MemoryPlace place = arena_place(memory_class, backend.target());
    const bool is_offloaded = memory_class == MemoryClass::offloaded && planned(place, c) > 0;
    arenas_on(place)[c] =
        is_offloaded ? offloads.emplace(backend).allocate(planned(place, c)) : backend.allocate(planned(place, c));
  }
  if (!design->choices.updates_on_host) return;
  for (const MemoryClass c : {MemoryClass::weights, MemoryClass::master, MemoryClass::optimizer, MemoryClass::workspace,
                              MemoryClass::state}) {
    const auto index = static_cast<size_t>(c);
    arenas_on(MemoryPlace::host)[index] = update_backend.allocate(planned(MemoryPlace::host, index));
  }
}

const DeviceMemory& StepParts::memory_of(MemoryClass c) const { return *arenas[arena_place(c, backend.target())][c]; }

const DeviceMemory& StepParts::memory_of_updates(MemoryClass c) const {
  if (!design->choices.updates_on_host) return memory_of(c);
  return *arenas[MemoryPlace::host][c];
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
