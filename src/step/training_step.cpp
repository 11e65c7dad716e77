#include "step/training_step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <utility>

#include "config/parallelism.h"
#include "model/spec/tensor_key.h"
#include "ops/device_crc32c.h"
#include "optim/types.h"
#include "step/arena_fill.h"
#include "step/choosing_pass.h"
#include "step/save_buffer.h"

namespace gptrain::inline step {
namespace {

template <typename T>
void upload_copies(Backend& backend, T* to, T value, int64_t count) {
  const std::vector<T> copies(static_cast<size_t>(count), value);
  backend.upload(to, copies.data(), count * static_cast<int64_t>(sizeof(T)));
}

}  // namespace

TrainingStep::TrainingStep(std::shared_ptr<const StepDesign> design, Backend& backend, RankGroups& groups,
                           const UpdatePlace& updates)
    : design_(std::move(design)),
      backend_(backend),
      update_backend_(updates.backend != nullptr ? *updates.backend : backend),
      groups_(groups),
      copy_queue_(backend.make_side_queue()),
      readback_(backend, copy_queue_.get(), design_->statistics.num_sums()),
      state_(nullptr),
      gathers_(design_->spec.units.size(), Lane::done),
      initial_statistics_(design_->statistics.initial_values()),
      program_(design_->programs.size() - 1) {
  const RunConfig& config = design_->config;
  const StepMemory& memory = design_->memory;
  allocate();
  const int64_t scratch = align_up(memory.scratch_bytes);
  backend_.set_scratch(arena(MemoryClass::workspace), scratch);
  const bool on_host = design_->choices.updates_on_host;
  const int64_t update_scratch = align_up(memory.update_scratch_bytes);
  const int64_t frames = memory.arenas[MemoryClass::workspace] - scratch - (on_host ? 0 : update_scratch);
  workspace_ = Workspace(arena(MemoryClass::workspace) + scratch, frames);
  if (updates.backend != nullptr)
    update_backend_.set_scratch(
        on_host ? memory_of_updates(MemoryClass::workspace).data() : arena(MemoryClass::workspace) + scratch + frames,
        update_scratch);
  state_ = reinterpret_cast<StepState*>(arena(MemoryClass::state));
  backend_.upload(state_, &host_state_, sizeof(StepState));

  const OptimizerType& optimizer = optimizer_type(config.optimizer.type);
  parameters_ = std::make_unique<ParameterStore>(
      design_->spec, design_->shards, design_->layout, design_->sharding,
      ParameterBuffers{.weights = arena(MemoryClass::weights),
                       .updated = on_host ? memory_of_updates(MemoryClass::weights).data() : nullptr,
                       .gradients = arena(MemoryClass::gradients),
                       .master = memory_of_updates(MemoryClass::master).data(),
                       .state = memory_of_updates(MemoryClass::optimizer).data()},
      design_->columns, design_->choices.optimizer_state);
  if (parameters_->state_layout().any_away()) make_update_lane(updates.files);
  model_ = make_model(*design_, design_->training_shape, backend_, groups_, &overflow_);
  evaluation_model_ = make_model(*design_, design_->evaluation_shape, backend_, groups_, &overflow_);
  const int64_t loss_scale_window = config.precision.scales_loss() ? config.precision.loss_scale_window : 0;
  const UpdateContext context{
      .parameters = *parameters_, .state = state_, .backend = backend_, .groups = groups_, .workspace = workspace_};
  std::byte* const state = arena(MemoryClass::state);
  const StateTables& tables = design_->tables;
  std::byte* const update_state = on_host            ? memory_of_updates(MemoryClass::state).data()
                                  : lane_ != nullptr ? state + tables.update_state
                                                     : state;
  const UpdateContext update_context{.parameters = *parameters_,
                                     .state = reinterpret_cast<StepState*>(update_state),
                                     .backend = lane_ != nullptr ? lane_->backend() : update_backend_,
                                     .groups = groups_,
                                     .workspace = workspace_,
                                     .away = away_.get()};
  statistics_ = {.layout = &design_->statistics, .block = state + tables.statistics};
  AgreementRules rules{.clip_norm = config.optimizer.clip_norm,
                       .loss_scale_window = loss_scale_window,
                       .statistics = design_->statistics.reductions(statistics_.block)};
  if (config.optimizer.qk_clip > 0) {
    qk_clip_ = std::make_unique<QkClip>(context, config.optimizer.qk_clip, statistics_.find(head_scores_statistic),
                                        state + tables.qk_clip);
    rules.qk_clip = qk_clip_.get();
  }
  agreement_ =
      std::make_unique<StepAgreement>(context, std::move(rules), state + tables.agreement, groups_, copy_queue_.get());
  optimizer_ = optimizer.make(config.optimizer, update_context, config.run.seed,
                              on_host ? update_state + align_up(sizeof(StepState)) : state + tables.optimizer);
  if (design_->sharding.gradients != DType::f32) {
    accumulated_ = std::make_unique<AccumulatedGradients>(*parameters_, config.run.seed, config.batch.accumulation,
                                                          state + tables.accumulated_gradients, state_, backend_);
  }
  update_ = std::make_unique<StepUpdate>(*agreement_, *optimizer_, UpdateSite{context, update_context, lane_.get()},
                                         qk_clip_.get());
  if (copy_queue_ != nullptr) {
    const DeviceMemory& data = memory_of(MemoryClass::data);
    uploads_ = std::make_unique<MicroBatchUploads>(
        *copy_queue_, data.data() + data.bytes() - landing_bytes(config, backend_.target()), micro_batch_shape(config));
  }
  if (design_->messages.num_residuals > 0) {
    compression_ = std::make_unique<GradientCompression>(
        GradientCompression{.messages = design_->messages,
                            .residuals = reinterpret_cast<std::byte*>(residuals_at(0)),
                            .errors = reinterpret_cast<std::byte*>(residuals_at(1)),
                            .state = state_,
                            .rank = config.comm.compression.rank,
                            .seed = config.run.seed});
  }
  ExecutorResources place{.arenas = arena_starts(),
                          .state = state_,
                          .statistics = statistics_,
                          .workspace = &workspace_,
                          .backend = &backend_,
                          .groups = &groups_,
                          .gathers = &gathers_,
                          .weight_reads = weight_reads_.get(),
                          .away_gradients = away_gradients_.get(),
                          .accumulated = accumulated_.get(),
                          .uploads = uploads_.get(),
                          .offloads = offloads_ ? &*offloads_ : nullptr};
  for (const StepProgram& of_steps : design_->programs) {
    place.compression = of_steps.compresses ? compression_.get() : nullptr;
    executors_.push_back(std::make_unique<Executor>(*model_, *of_steps.program, *parameters_, place, update_.get()));
  }
  place.compression = nullptr;
  place.statistics = {};
  evaluation_executor_ =
      std::make_unique<Executor>(*evaluation_model_, *design_->evaluation, *parameters_, place, nullptr);
}

TrainingStep::~TrainingStep() {
  try {
    groups_.wait_all();
    backend_.synchronize();
  } catch (const std::exception&) {
    // A failed group was reported by the wait that found it, and its transfers are over.
  }
}

void TrainingStep::make_update_lane(WorkingFiles* files) {
  lane_ = std::make_unique<UpdateLane>(*parameters_, update_backend_, groups_, files);
  away_ = std::make_unique<AwayState>(*parameters_, groups_, files, [this] { lane_->suspend(); });
  const Sharding& sharding = design_->sharding;
  if (sharding.weights_away()) weight_reads_ = std::make_unique<WeightReads>(*parameters_, groups_, files, *lane_);
  if (sharding.gradients_away)
    away_gradients_ = std::make_unique<AwayGradients>(*parameters_, groups_, backend_, files);
}

void TrainingStep::wait_all() const {
  if (lane_ != nullptr) lane_->drain();
  groups_.wait_all();
}

void TrainingStep::read_state(void* to, const void* from, int64_t bytes) const {
  if (AwayState::holds(from)) {
    std::memcpy(to, away_->fetched(from), static_cast<size_t>(bytes));
  } else {
    backend_.download(to, from, bytes);
  }
}

void TrainingStep::write_state(void* to, const void* from, int64_t bytes) const {
  if (!AwayState::holds(to)) return backend_.upload(to, from, bytes);
  std::memcpy(away_->fetched(to), from, static_cast<size_t>(bytes));
  away_->change();
}

std::vector<StateSlice> TrainingStep::state(bool written_only) const {
  wait_all();
  return parameters_->state(written_only);
}

void TrainingStep::take_snapshot_memory() { snapshot_.emplace(backend_, design_->snapshot_bytes); }

float* TrainingStep::residuals_at(int64_t buffer) const {
  if (!design_->keeps_residuals()) return nullptr;
  return reinterpret_cast<float*>(arena(MemoryClass::residuals)) + buffer * design_->messages.num_residuals;
}

std::vector<StateSlice> TrainingStep::residuals() const {
  std::vector<StateSlice> pieces;
  if (!design_->keeps_residuals()) return pieces;
  for (const ResidualBox& box : design_->messages.boxes) {
    StateSlice& piece = pieces.emplace_back();
    piece.tensor = box.tensor;
    piece.offset = box.offset;
    piece.shape = box.shape;
    (box.is_factor ? piece.factor : piece.residual) = residuals_at(0) + box.first;
  }
  return pieces;
}

std::vector<StateSlice> TrainingStep::written_residuals() const {
  std::vector<StateSlice> pieces = residuals();
  if (groups_.data_rank() > 0) std::erase_if(pieces, [](const StateSlice& piece) { return piece.factor != nullptr; });
  return pieces;
}

std::vector<StateSlice> TrainingStep::written_state() const {
  std::vector<StateSlice> pieces = state(true);
  for (StateSlice& piece : written_residuals()) pieces.push_back(std::move(piece));
  return pieces;
}

std::vector<StateSlice> TrainingStep::copy_state() { return snapshot_->copy(written_state(), parameters_->columns()); }

uint32_t TrainingStep::weights_checksum(ReplicaGroup replicas) const {
  if (design_->sharding.gathers_weights()) return 0;
  wait_all();
  // Experts with replicas of their own lie between the other units and the f32 norms.
  const ParameterLayout& layout = design_->layout;
  const auto first = std::find_if(layout.units.begin(), layout.units.end(),
                                  [](const UnitRange& unit) { return unit.replicas == ReplicaGroup::expert_data; });
  const int64_t element = dtype_bytes(design_->sharding.compute), end = layout.elements * element;
  const int64_t begin = first == layout.units.end() ? end : first->offset * element;
  std::byte* const weights = arena(MemoryClass::weights);
  if (replicas == ReplicaGroup::expert_data) return device_crc32c(backend_, weights + begin, end - begin, 0);
  const uint32_t crc = device_crc32c(backend_, weights, begin, 0);
  return device_crc32c(backend_, weights + end, memory_of(MemoryClass::weights).bytes() - end, crc);
}

uint32_t TrainingStep::norms_checksum() const {
  if (design_->sharding.gathers_weights()) return 0;
  wait_all();
  uint32_t crc = 0;
  for (int64_t unit = 0; unit < parameters_->num_parameter_units(); ++unit) {
    const UnitRange& range = design_->layout.units[static_cast<size_t>(unit)];
    for (int64_t i = range.first_tensor; i < range.first_tensor + range.num_tensors; ++i) {
      const NormUse use = design_->spec.tensors[static_cast<size_t>(i)].norm_use;
      if (use == NormUse::no_norm || use == NormUse::sinks) continue;
      const Segment& segment = design_->layout.segments[static_cast<size_t>(i)];
      std::byte* const weights =
          parameters_->whole(unit).norms + (segment.offset - range.offset) * dtype_bytes(DType::f32);
      crc = device_crc32c(backend_, weights, segment.count * dtype_bytes(DType::f32), crc);
    }
  }
  return crc;
}

MemoryPlan TrainingStep::taken() const {
  MemoryPlan taken = memory_outside(design_->config, backend_.target(), groups_.exchanged_bytes());
  for (size_t place = 0; place < num_memory_places; ++place) {
    MemoryPlan::ByClass& bytes = taken.on(static_cast<MemoryPlace>(place));
    for (size_t c = 0; c < num_memory_classes; ++c)
      if (arenas_[place][c]) bytes[c] += arenas_[place][c]->bytes();
  }
  parameters_->state_layout().add_away(taken);
  taken.on(host_place(backend_.target()))[static_cast<size_t>(MemoryClass::snapshot)] +=
      (snapshot_ ? snapshot_->bytes() : 0) + save_buffer_bytes(design_->choices);
  return taken;
}

void TrainingStep::allocate() {
  const StepMemory& memory = design_->memory;
  const auto planned = [&memory](MemoryPlace place, size_t c) {
    return memory.arenas.on(place)[c] - memory.outside.on(place)[c];
  };
  for (size_t c = 0; c < num_memory_classes; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    const MemoryPlace place = arena_place(memory_class, backend_.target());
    const bool is_offloaded = memory_class == MemoryClass::offloaded && planned(place, c) > 0;
    arenas_on(place)[c] =
        is_offloaded ? offloads_.emplace(backend_).allocate(planned(place, c)) : backend_.allocate(planned(place, c));
  }
  if (!design_->choices.updates_on_host) return;
  for (const MemoryClass c : {MemoryClass::weights, MemoryClass::master, MemoryClass::optimizer, MemoryClass::workspace,
                              MemoryClass::state}) {
    const auto index = static_cast<size_t>(c);
    arenas_on(MemoryPlace::host)[index] = update_backend_.allocate(planned(MemoryPlace::host, index));
  }
}

const DeviceMemory& TrainingStep::memory_of(MemoryClass c) const {
  return *arenas_[static_cast<size_t>(arena_place(c, backend_.target()))][static_cast<size_t>(c)];
}

const DeviceMemory& TrainingStep::memory_of_updates(MemoryClass c) const {
  if (!design_->choices.updates_on_host) return memory_of(c);
  return *arenas_[static_cast<size_t>(MemoryPlace::host)][static_cast<size_t>(c)];
}

ArenaStarts TrainingStep::arena_starts() const {
  ArenaStarts starts;
  for (size_t place = 0; place < num_memory_places; ++place)
    for (size_t c = 0; c < num_memory_classes; ++c)
      if (arenas_[place][c])
        starts.at(static_cast<MemoryPlace>(place), static_cast<MemoryClass>(c)) = arenas_[place][c]->data();
  return starts;
}

void TrainingStep::choose_algorithms() {
  if (backend_.algorithms().empty()) return;
  for (const MemoryClass c : {MemoryClass::weights, MemoryClass::gathered, MemoryClass::fp8_weights,
                              MemoryClass::activations, MemoryClass::workspace}) {
    const int64_t bytes = memory_of(c).bytes();
    fill_memory(backend_, copy_queue_.get(), arena(c), bytes, numbers_for_products(static_cast<uint32_t>(c), bytes));
  }
  ComputeOnly compute_only;
  NoTokens source(model_->shape());
  backend_.set_choosing(true);
  executors_.back()->play(source, &compute_only);
  evaluation_executor_->play(source, &compute_only);
  backend_.synchronize();  // before `source` is destroyed
  backend_.set_choosing(false);
}

void TrainingStep::clear_state() {
  wait_all();
  zero_memory(backend_, copy_queue_.get(), arena(MemoryClass::weights), memory_of(MemoryClass::weights).bytes());
  for (const MemoryClass c : {MemoryClass::weights, MemoryClass::master, MemoryClass::optimizer}) {
    const DeviceMemory& memory = memory_of_updates(c);
    zero_memory(update_backend_, copy_queue_.get(), memory.data(), memory.bytes());
  }
  const DeviceMemory& residuals = memory_of(MemoryClass::residuals);
  zero_memory(backend_, copy_queue_.get(), residuals.data(), residuals.bytes());
  if (away_ != nullptr) away_->clear();
  if (away_gradients_ == nullptr) return;
  // Whole pages of the slots are written, of which ops write the beginning.
  const DeviceMemory& slots = memory_of(MemoryClass::gradients);
  zero_memory(backend_, copy_queue_.get(), slots.data(), slots.bytes());
}

// REQUIRES: the piece has elements, all of them zero.
void TrainingStep::initialize_weights(const StateSlice& piece) {
  const TensorSpec& tensor = design_->spec.tensors[static_cast<size_t>(piece.tensor)];
  // Rows of the tensor that are whole are one row of values.
  const int64_t tensor_cols = tensor.shape.back();
  const bool in_rows = piece.shape.size() == 2 && piece.shape[1] < tensor_cols;
  const int64_t cols = in_rows ? piece.shape[1] : piece.count();
  const auto landed = [this](auto* values) {
    if (!AwayState::holds(values)) return values;
    auto* const at = reinterpret_cast<decltype(values)>(away_->fetched(values));
    away_->change();
    return at;
  };
  float* const weight = landed(piece.weight);
  bf16* const narrow_weight = landed(piece.narrow_weight);
  const Matrix to = weight != nullptr ? Matrix(weight, DType::f32, piece.count() / cols, cols)
                                      : Matrix(narrow_weight, DType::bf16, piece.count() / cols, cols);
  if (tensor.init == Init::normal) {
    const int64_t first = piece.offset.size() == 2 ? piece.offset[0] * tensor_cols + piece.offset[1] : piece.offset[0];
    backend_.run(NormalValues{
        .key = tensor_key(tensor, design_->config.run.seed, RandomUse::initial_weights),
        .deviation = static_cast<float>(tensor.init_scale),
        .first = first,
        .row_step = tensor_cols,
        .to = to,
    });
  } else if (tensor.init == Init::constant) {
    const auto value = static_cast<float>(tensor.init_scale);
    if (weight != nullptr) return upload_copies(backend_, weight, value, piece.count());
    upload_copies(backend_, narrow_weight, to_bf16(value), piece.count());
  }
}

void TrainingStep::initialize(const std::function<void(int64_t)>& progress) {
  clear_state();
  int64_t drawn = 0;
  for (const StateSlice& piece : state()) {
    if (piece.count() == 0) continue;
    initialize_weights(piece);
    drawn += piece.count();
    if (progress) progress(drawn);
  }
  set_updates(0);
  if (design_->config.precision.scales_loss())
    set_loss_scale({static_cast<float>(design_->config.precision.loss_scale), 0});
  weights_changed();
}

void TrainingStep::weights_changed() {
  for (int64_t unit = 0; unit < parameters_->num_parameter_units(); ++unit) {
    const UpdateRange range = parameters_->update_range(unit);
    if (away_ != nullptr && design_->sharding.masters_away) away_->fetch(unit);
    copy_norms(*parameters_, unit, backend_);
    if (range.elements == 0 || range.weights == nullptr || range.master == nullptr) continue;
    if (design_->sharding.weights_away()) away_->change();
    backend_.run(Cast{.from = Matrix(range.master, DType::f32, 1, range.elements),
                      .to = Matrix(range.weights, design_->config.precision.compute, 1, range.elements)});
  }
  if (away_ != nullptr) away_->release();
  if (!design_->sharding.flow().weights_return) return;
  for (int64_t unit = 0; unit < parameters_->num_parameter_units(); ++unit)
    gathers_[static_cast<size_t>(unit)] = begin_gather(*parameters_, unit, nullptr, groups_, backend_);
}

void TrainingStep::set_updates(int64_t updates) {
  host_state_.updates = updates;
  backend_.upload(state_, &host_state_, sizeof(StepState));
}

void TrainingStep::set_loss_scale(const LossScale& scale) {
  host_state_.loss_scale = scale;
  backend_.upload(state_, &host_state_, sizeof(StepState));
}

void TrainingStep::begin(double learning_rate, MicroBatchSource& source, ActionObserver* observer,
                         const std::function<bool()>& stop_wanted, std::optional<int64_t> counted_targets) {
  const StepConfig& config = design_->config;
  readback_.begin();
  host_state_.learning_rate = static_cast<float>(learning_rate);
  host_state_.counted_targets = counted_targets.value_or(config.batch.global * config.model.sequence_length);
  host_state_.inverse_tokens = static_cast<float>(1.0 / static_cast<double>(host_state_.counted_targets));
  host_state_.loss_sum = 0;
  host_state_.squared_norm = 0;
  host_state_.gradient_scale = 0;
  host_state_.skip = 0;
  host_state_.largest_score = 0;
  host_state_.clipped_heads = 0;
  backend_.upload(state_, &host_state_, offsetof(StepState, updates));
  if (!initial_statistics_.empty())
    backend_.upload(statistics_.block, initial_statistics_.data(), std::ssize(initial_statistics_));
  agreement_->ask_for_stop(stop_wanted);
  agreement_->ask_for_void([this, &source] { return source.is_void() || overflow_.any(); });
  if (lane_ != nullptr) {
    away_->release();
    lane_->resume();
  }
  executors_[program_]->play(source, observer);
  if (lane_ != nullptr && observer != nullptr) lane_->suspend();  // the observer's step includes its updates
  readback_.queue(state_, agreement_->stops(), reinterpret_cast<const double*>(statistics_.block));
}

StepResult TrainingStep::end() {
  StepReadback::Values values = readback_.read();
  host_state_ = values.state;
  return {.loss = host_state_.loss_sum / static_cast<double>(host_state_.counted_targets),
          .grad_norm = std::sqrt(host_state_.squared_norm),
          .skipped = host_state_.skip != 0,
          .stop = values.stops > 0,
          .is_void = values.stops >= StepAgreement::void_count,
          .updates = host_state_.updates,
          .largest_score = static_cast<double>(host_state_.largest_score),
          .clipped_heads = host_state_.clipped_heads,
          .loss_scale = static_cast<double>(host_state_.step_loss_scale),
          .counted_targets = host_state_.counted_targets,
          .sums = std::move(values.sums),
          .seconds = values.seconds};
}

StepResult TrainingStep::run(double learning_rate, MicroBatchSource& source, ActionObserver* observer,
                             const std::function<bool()>& stop_wanted, std::optional<int64_t> counted_targets) {
  begin(learning_rate, source, observer, stop_wanted, counted_targets);
  return end();
}

std::unique_ptr<DeviceMemory> TrainingStep::allocate_host(int64_t bytes) {
  return copy_queue_ != nullptr ? copy_queue_->allocate_host(bytes) : backend_.allocate(bytes);
}

double TrainingStep::evaluate(int64_t micro_batches, MicroBatchSource& source) {
  if (lane_ != nullptr) {
    away_->release();
    lane_->drain();
  }
  host_state_.loss_sum = 0;
  backend_.upload(state_, &host_state_, sizeof(StepState));
  for (int64_t i = 0; i < micro_batches; ++i) evaluation_executor_->play(source, nullptr);
  Lane& lane = groups_.lane(LaneKind::gradients);
  lane.wait(lane.all_reduce(groups_.loss_group(), &state_->loss_sum, 1, DType::f64));
  backend_.download(&host_state_, state_, sizeof(StepState));
  backend_.synchronize();
  return host_state_.loss_sum;
}

}  // namespace gptrain::step
