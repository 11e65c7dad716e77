#include "step/training_step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "model/spec/tensor_key.h"
#include "ops/device_crc32c.h"
#include "step/arena_fill.h"
#include "step/step_parts.h"

namespace gptrain::inline step {
namespace {

template <typename T>
void upload_copies(Backend& backend, T* to, T value, int64_t count) {
  const std::vector<T> values(count, value);
  backend.upload(to, values.data(), count * static_cast<int64_t>(sizeof(T)));
}

}  // namespace

TrainingStep::TrainingStep(std::shared_ptr<const StepDesign> design, Backend& backend, RankGroups& groups,
                           const UpdateDevice& updates)
    : design_(std::move(design)),
      backend_(backend),
      groups_(groups),
      parts_(std::make_unique<StepParts>(design_, backend, groups, updates)) {}

TrainingStep::~TrainingStep() = default;

MemoryPlan TrainingStep::taken() const { return parts_->taken(); }

int64_t TrainingStep::updates() const { return parts_->host_state.updates; }

std::optional<LossScale> TrainingStep::loss_scale() const {
  return design_->config.precision.scales_loss() ? std::optional(parts_->host_state.loss_scale) : std::nullopt;
}

void TrainingStep::use_program(size_t number) { parts_->use(number); }

int64_t TrainingStep::begun() const { return parts_->readback.ahead(); }

int64_t TrainingStep::most_ahead() const { return parts_->copy_queue != nullptr ? StepReadback::most_ahead - 1 : 0; }

bool TrainingStep::agree_to_stop(bool wanted) { return parts_->agreement->agree_to_stop(wanted); }

bool TrainingStep::has_state_away() const { return parts_->away != nullptr; }

bool TrainingStep::is_on_host(const void* value) const { return parts_->is_on_host(value); }

const std::byte* TrainingStep::fetched(const void* value) const {
  return is_away_address(value) ? parts_->away->fetched(value) : static_cast<const std::byte*>(value);
}

const ParameterStore& TrainingStep::parameters() const { return *parts_->parameters; }

const ExpertOverflow& TrainingStep::expert_overflow() const { return parts_->overflow; }

Workspace& TrainingStep::workspace() { return parts_->workspace; }

const StepStatistics& TrainingStep::statistics() const { return parts_->statistics; }

float* TrainingStep::residuals_at(int64_t buffer) const { return parts_->residuals_at(buffer); }

void TrainingStep::read_state(void* to, const void* from, int64_t bytes) const {
  if (is_away_address(from) || is_on_host(from)) {
    std::memcpy(to, fetched(from), bytes);
  } else {
    backend_.download(to, from, bytes);
  }
}

void TrainingStep::write_state(void* to, const void* from, int64_t bytes) const {
  if (!is_away_address(to) && is_on_host(to)) {
    std::memcpy(to, from, bytes);
    return;
  }
  if (!is_away_address(to)) return backend_.upload(to, from, bytes);
  std::memcpy(parts_->away->fetched(to), from, bytes);
  parts_->away->change();
}

std::vector<StateSlice> TrainingStep::state(bool written_only) const {
  parts_->wait_all();
  return parts_->parameters->state(written_only);
}

void TrainingStep::take_snapshot_memory() {
  const int64_t of_clones = design_->cloned_bytes > 0 ? AwayClone::memory_bytes(*parts_->parameters) : 0;
  parts_->snapshot.emplace(backend_, design_->snapshot_bytes, of_clones);
}

std::vector<StateSlice> TrainingStep::residuals() const {
  std::vector<StateSlice> pieces;
  if (!design_->keeps_residuals()) return pieces;
  for (const ResidualBox& box : design_->messages.boxes) {
    StateSlice& piece = pieces.emplace_back();
    piece.tensor = box.tensor;
    piece.offset = box.offset;
    piece.shape = box.shape;
    (box.is_factor ? piece.factor : piece.residual) = parts_->residuals_at(0) + box.first;
  }
  return pieces;
}

std::vector<StateSlice> TrainingStep::written_residuals() const {
  std::vector<StateSlice> pieces = residuals();
  if (groups_.data_rank() > 0) std::erase_if(pieces, [](const StateSlice& piece) { return piece.factor != nullptr; });
  return pieces;
}

std::vector<StateSlice> TrainingStep::written_state() const {
  if (groups_.island() > 0 && design_->config.parallel.zero_node_copy) return {};  // the first node writes
  std::vector<StateSlice> pieces = state(true);
  if (groups_.island() > 0) {
    // The first island writes the values that all islands have.
    for (StateSlice& piece : pieces) {
      piece.weight = nullptr;
      if (design_->config.parallel.local_steps.has_momentum()) piece.columns.back() = nullptr;
    }
  }
  for (StateSlice& piece : written_residuals()) pieces.push_back(std::move(piece));
  return pieces;
}

std::vector<StateSlice> TrainingStep::copy_state() {
  const StateLayout& layout = parts_->parameters->state_layout();
  return parts_->snapshot->copy(
      written_state(), parts_->parameters->columns(), [&](const void* value) -> StateSnapshot::Source {
        if (design_->cloned_bytes > 0 && is_away_address(value) &&
            layout.lands(layout.find_away(offset_away(value)).unit))
          return {.is_cloned = true};
        return {.on_host = is_away_address(value) || is_on_host(value) ? fetched(value) : nullptr};
      });
}

TrainingStep::ReadClone TrainingStep::clone_state() {
  if (design_->cloned_bytes == 0) return {};
  return [clone = parts_->away->clone(parts_->snapshot->clone_memory())](
             const void* address, int64_t bytes, const Take& take) { clone->read(address, bytes, take); };
}

uint32_t TrainingStep::weights_checksum(ReplicaGroup replicas) const {
  if (design_->sharding.gathers_weights()) return 0;
  parts_->wait_all();
  // Experts with replicas of their own lie between the other units and the f32 norms.
  const ParameterLayout& layout = design_->layout;
  const auto first = std::find_if(layout.units.begin(), layout.units.end(),
                                  [](const UnitRange& unit) { return unit.replicas == ReplicaGroup::expert_data; });
  const int64_t element = dtype_bytes(design_->sharding.compute), end = layout.elements * element;
  const int64_t begin = first == layout.units.end() ? end : first->offset * element;
  std::byte* const weights = parts_->arena(MemoryClass::weights);
  if (replicas == ReplicaGroup::expert_data) return device_crc32c(backend_, weights + begin, end - begin, 0);
  const uint32_t crc = device_crc32c(backend_, weights, begin, 0);
  const int64_t bytes = parameter_bytes(design_->layout, design_->sharding, design_->columns).weights;
  return device_crc32c(backend_, weights + end, bytes - end, crc);
}

uint32_t TrainingStep::norms_checksum() const {
  if (design_->sharding.gathers_weights()) return 0;
  parts_->wait_all();
  uint32_t crc = 0;
  for (int64_t unit = 0; unit < parts_->parameters->num_parameter_units(); ++unit) {
    const UnitRange& range = design_->layout.units[unit];
    for (int64_t i = range.first_tensor; i < range.first_tensor + range.num_tensors; ++i) {
      const NormUse use = design_->spec->tensors[i].norm_use;
      if (use == NormUse::no_norm || use == NormUse::sinks) continue;
      const Segment& segment = design_->layout.segments[i];
      std::byte* const weights =
          parts_->parameters->whole(unit).norms + (segment.offset - range.offset) * dtype_bytes(DType::f32);
      crc = device_crc32c(backend_, weights, segment.count * dtype_bytes(DType::f32), crc);
    }
  }
  return crc;
}

void TrainingStep::clear_state() {
  parts_->wait_all();
  zero_memory(backend_, parts_->copy_queue.get(), parts_->arena(MemoryClass::weights),
              parts_->memory_of(MemoryClass::weights).bytes());
  for (const MemoryClass c : {MemoryClass::weights, MemoryClass::master, MemoryClass::optimizer}) {
    const DeviceMemory& memory = parts_->memory_of_updates(c);
    const bool on_device = &memory == &parts_->memory_of(c);
    zero_memory(on_device ? backend_ : parts_->update_backend, on_device ? parts_->copy_queue.get() : nullptr,
                memory.data(), memory.bytes());
    const DeviceMemory& at_home = parts_->memory_of(c);
    if (!on_device && c != MemoryClass::weights)
      zero_memory(backend_, parts_->copy_queue.get(), at_home.data(), at_home.bytes());
  }
  const DeviceMemory& residuals = parts_->memory_of(MemoryClass::residuals);
  zero_memory(backend_, parts_->copy_queue.get(), residuals.data(), residuals.bytes());
  if (parts_->away != nullptr) parts_->away->clear();
  if (parts_->away_gradients == nullptr) return;
  // Whole pages of the slots are written, of which ops write the beginning.
  const DeviceMemory& slots = parts_->memory_of(MemoryClass::gradients);
  zero_memory(backend_, parts_->copy_queue.get(), slots.data(), slots.bytes());
}

// REQUIRES: the piece has elements, all of them zero.
void TrainingStep::initialize_weights(const StateSlice& piece) {
  const TensorSpec& tensor = design_->spec->tensors[piece.tensor];
  // Rows of the tensor that are whole are one row of values.
  const int64_t tensor_cols = tensor.shape.back();
  const bool in_rows = piece.shape.size() == 2 && piece.shape[1] < tensor_cols;
  const int64_t cols = in_rows ? piece.shape[1] : piece.count();
  const auto landed = [this](auto* values) {
    if (!is_away_address(values)) return values;
    auto* const at = reinterpret_cast<decltype(values)>(parts_->away->fetched(values));
    parts_->away->change();
    return at;
  };
  float* const weight = landed(piece.weight);
  bf16* const narrow_weight = landed(piece.narrow_weight);
  Backend& backend =
      is_on_host(weight != nullptr ? static_cast<void*>(weight) : narrow_weight) ? parts_->update_backend : backend_;
  const Matrix to = weight != nullptr ? Matrix(weight, DType::f32, piece.count() / cols, cols)
                                      : Matrix(narrow_weight, DType::bf16, piece.count() / cols, cols);
  if (tensor.init == Init::normal) {
    const int64_t first = piece.offset.size() == 2 ? piece.offset[0] * tensor_cols + piece.offset[1] : piece.offset[0];
    backend.run(NormalValues{
        .key = tensor_key(tensor, design_->config.run.seed, RandomUse::initial_weights),
        .deviation = static_cast<float>(tensor.init_scale),
        .first = first,
        .row_step = tensor_cols,
        .to = to,
    });
  } else if (tensor.init == Init::constant) {
    const auto value = static_cast<float>(tensor.init_scale);
    if (weight != nullptr) return upload_copies(backend, weight, value, piece.count());
    upload_copies(backend, narrow_weight, to_bf16(value), piece.count());
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
  set_amax_history({});
  if (design_->config.precision.scales_loss())
    set_loss_scale({static_cast<float>(design_->config.precision.loss_scale), 0});
  weights_changed();
}

void TrainingStep::forget_errors() {
  if (parts_->residual_bytes() > 0)
    zero_memory(backend_, parts_->copy_queue.get(), parts_->arena(MemoryClass::residuals), parts_->residual_bytes());
  if (parts_->compression != nullptr && parts_->compression->server_errors) {
    for (int64_t unit = 0; unit < parts_->parameters->num_parameter_units(); ++unit)
      zero_memory(backend_, parts_->copy_queue.get(),
                  parts_->parameters->column(*parts_->compression->server_errors, unit),
                  design_->layout.units[unit].elements * dtype_bytes(DType::f32));
  }
  if (parts_->average != nullptr) parts_->average->restart();
}

void TrainingStep::weights_changed() {
  if (parts_->copies != nullptr) parts_->copies->finish();
  for (int64_t unit = 0; unit < parts_->parameters->num_parameter_units(); ++unit) {
    if (parts_->copies != nullptr && parts_->parameters->state_layout().is_away(unit)) {
      parts_->return_weights(unit);
      continue;
    }
    if (parts_->away != nullptr && design_->sharding.masters_away) parts_->away->fetch(unit);
    copy_norms(*parts_->parameters, unit, backend_);
    if (round_masters(*parts_->parameters, unit, backend_) && design_->sharding.weights_away()) parts_->away->change();
  }
  if (parts_->away != nullptr) parts_->away->release();
  if (parts_->average != nullptr) parts_->average->restart();
  if (design_->sharding.flow().weights_return) begin_gathers();
}

void TrainingStep::begin_gathers() {
  for (int64_t unit = 0; unit < parts_->parameters->num_parameter_units(); ++unit)
    parts_->gathers[unit] = begin_gather(*parts_->parameters, unit, nullptr, groups_, backend_);
}

void TrainingStep::catch_up() {
  if (!design_->sharding.updates_delayed) return;
  parts_->wait_all();
  begin_gathers();
}

void TrainingStep::set_updates(int64_t updates) {
  parts_->host_state.updates = updates;
  backend_.upload(parts_->state, &parts_->host_state, sizeof(StepState));
}

void TrainingStep::set_amax_history(const std::vector<float>& amaxes) {
  if (parts_->amax_history != nullptr) parts_->amax_history->set(amaxes, updates());
}

std::vector<float> TrainingStep::amax_history() const {
  return parts_->amax_history == nullptr ? std::vector<float>{} : parts_->amax_history->get(updates());
}

void TrainingStep::set_loss_scale(const LossScale& scale) {
  parts_->host_state.loss_scale = scale;
  backend_.upload(parts_->state, &parts_->host_state, sizeof(StepState));
}

void TrainingStep::begin(double learning_rate, MicroBatchSource& source, ActionObserver* observer,
                         const std::function<bool()>& stop_wanted, std::optional<int64_t> counted_targets) {
  const StepConfig& config = design_->config;
  parts_->readback.begin();
  parts_->host_state.learning_rate = static_cast<float>(learning_rate);
  parts_->host_state.counted_targets = counted_targets.value_or(config.batch.global * config.model.sequence_length);
  parts_->host_state.inverse_tokens = static_cast<float>(1.0 / static_cast<double>(parts_->host_state.counted_targets));
  const StepProgram& program = design_->programs[parts_->program];
  if (program.is_alone)
    parts_->host_state.inverse_tokens *= static_cast<float>(design_->sharding.replica_rank(ReplicaGroup::data).size);
  const bool in_island = config.parallel.local_steps.is_on() && !program.over_islands;
  // An island's loss is the mean over its equal share of the batch.
  if (in_island) parts_->host_state.inverse_tokens *= static_cast<float>(groups_.num_islands());
  if (in_island && std::exchange(parts_->anchors_are_old, false)) parts_->average->restart();
  parts_->anchors_are_old = parts_->anchors_are_old || program.over_islands;
  parts_->host_state.loss_sum = 0;
  parts_->host_state.squared_norm = 0;
  parts_->host_state.gradient_scale = 0;
  parts_->host_state.skip = 0;
  parts_->host_state.largest_score = 0;
  parts_->host_state.clipped_heads = 0;
  backend_.upload(parts_->state, &parts_->host_state, offsetof(StepState, updates));
  if (!parts_->initial_statistics.empty())
    backend_.upload(parts_->statistics.block, parts_->initial_statistics.data(),
                    std::ssize(parts_->initial_statistics));
  parts_->agreement->ask_for_stop(stop_wanted);
  parts_->agreement->ask_for_void([this, &source] { return source.is_void() || parts_->overflow.any(); });
  if (parts_->lane != nullptr) {
    parts_->away->release();
    parts_->lane->resume();
  }
  parts_->executors[parts_->program]->play(source, observer);
  if (parts_->lane != nullptr && observer != nullptr)
    parts_->lane->suspend();  // the observer's step includes its updates
  parts_->readback.queue(parts_->state, parts_->agreement->stops(),
                         reinterpret_cast<const double*>(parts_->statistics.block));
}

StepResult TrainingStep::end() {
  StepReadback::Values values = parts_->readback.read();
  parts_->host_state = values.state;
  const int64_t norms = measures_whole(design_->config.optimizer)
                            ? design_->sharding.replica_rank(ReplicaGroup::data).size
                            : groups_.num_islands();
  return {.loss = parts_->host_state.loss_sum / static_cast<double>(parts_->host_state.counted_targets),
          .grad_norm = std::sqrt(parts_->host_state.squared_norm / static_cast<double>(norms)),
          .skipped = parts_->host_state.skip != 0,
          .stop = values.stops > 0,
          .is_void = values.stops >= StepAgreement::void_count,
          .updates = parts_->host_state.updates,
          .largest_score = static_cast<double>(parts_->host_state.largest_score),
          .clipped_heads = parts_->host_state.clipped_heads,
          .loss_scale = static_cast<double>(parts_->host_state.step_loss_scale),
          .counted_targets = parts_->host_state.counted_targets,
          .sums = std::move(values.sums),
          .seconds = values.seconds};
}

StepResult TrainingStep::run(double learning_rate, MicroBatchSource& source, ActionObserver* observer,
                             const std::function<bool()>& stop_wanted, std::optional<int64_t> counted_targets) {
  begin(learning_rate, source, observer, stop_wanted, counted_targets);
  return end();
}

std::unique_ptr<DeviceMemory> TrainingStep::allocate_host(int64_t bytes) {
  return parts_->copy_queue != nullptr ? parts_->copy_queue->allocate_host(bytes) : backend_.allocate(bytes);
}

double TrainingStep::evaluate(int64_t micro_batches, MicroBatchSource& source) {
  if (parts_->lane != nullptr) {
    parts_->away->release();
    parts_->lane->drain();
  }
  parts_->host_state.loss_sum = 0;
  backend_.upload(parts_->state, &parts_->host_state, sizeof(StepState));
  for (int64_t i = 0; i < micro_batches; ++i) parts_->evaluation_executor->play(source, nullptr);
  Lane& lane = groups_.lane(LaneKind::gradients);
  lane.wait(lane.all_reduce(groups_.loss_group(), &parts_->state->loss_sum, 1, DType::f64));
  backend_.download(&parts_->host_state, parts_->state, sizeof(StepState));
  backend_.synchronize();
  return parts_->host_state.loss_sum;
}

}  // namespace gptrain::step
