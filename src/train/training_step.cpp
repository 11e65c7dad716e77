#include "train/training_step.h"

#include <cmath>
#include <cstddef>
#include <limits>

#include "model/spec/init.h"

namespace gptrain {
namespace {

constexpr int64_t upload_chunk_elements = int64_t{1} << 20;

StepShape step_shape(const RunConfig& config, bool training) {
  return {.model = config.model,
          .precision = config.precision,
          .batch = config.batch.micro,
          .sequence_length = config.model.sequence_length,
          .loss_chunk_tokens = config.memory.loss_chunk_tokens,
          .seed = config.run.seed,
          .training = training};
}

// Bytes of each arena, but for the workspace, which only a run of the step can tell.
MemoryPlan arena_bytes(const RunConfig& config, const ModelSpec& spec, const ParameterLayout& layout,
                       const SlotMap& slots) {
  MemoryPlan memory;
  const bool mixed = config.precision.compute != DType::f32;
  memory[MemoryClass::weights] = layout.elements * dtype_bytes(config.precision.compute);
  memory[MemoryClass::gradients] = layout.elements * dtype_bytes(DType::f32);
  memory[MemoryClass::master] = mixed ? layout.elements * dtype_bytes(DType::f32) : 0;
  memory[MemoryClass::moments] = 2 * layout.elements * dtype_bytes(DType::f32);
  memory[MemoryClass::activations] = slots.activation_bytes();
  memory[MemoryClass::data] = slots.data_bytes() + all_rings_bytes(config);
  memory[MemoryClass::state] = align_up(sizeof(StepState)) + AdamWRule::table_bytes(spec);
  return memory;
}

// Lets equal actions run once: the plan counts an action that it has seen as often as it comes.
class PlanObserver : public ActionObserver {
 public:
  PlanObserver(PlanBackend& backend, int32_t num_units) : backend_(backend), head_(num_units - 1) {}

  bool before(const Action& action) override {
    key_ = key(action);
    Entry& entry = seen_[key_];
    if (entry.seen) {
      backend_.add(entry.ops);
      return false;
    }
    start_ = backend_.ops();
    backend_.set_recomputing(action.kind == ActionKind::recompute);
    return true;
  }

  void after(const Action&) override {
    backend_.set_recomputing(false);
    seen_[key_] = {true, backend_.since(start_)};
  }

 private:
  struct Entry {
    bool seen = false;
    OpTable ops{};
  };
  static constexpr size_t num_kinds = static_cast<size_t>(ActionKind::update) + 1;

  // Actions with equal keys run equal ops: blocks are alike, and the first micro-batch overwrites gradients where
  // others add.
  size_t key(const Action& action) const {
    const size_t unit = action.unit <= 0 ? 0 : (action.unit == head_ ? 2 : 1);
    const size_t first = action.micro_batch == 0 ? 1 : 0;
    return (static_cast<size_t>(action.kind) * 3 + unit) * 2 + first;
  }

  PlanBackend& backend_;
  int32_t head_;
  size_t key_ = 0;
  OpTable start_{};
  std::array<Entry, num_kinds * 6> seen_{};
};

class NoMicroBatches : public MicroBatchSource {
 public:
  const MicroBatch& next() override { return none_; }

 private:
  MicroBatch none_;
};

}  // namespace

int64_t prefetch_ring_bytes(const RunConfig& config) {
  return prefetch_depth * MicroBatch::bytes(config.batch.micro, config.model.sequence_length);
}

int64_t all_rings_bytes(const RunConfig& config) {
  return (config.data.validation.empty() ? 1 : 2) * prefetch_ring_bytes(config);
}

OpTotals StepPlan::total() const {
  OpTotals sum;
  for (const OpTotals& op : ops) sum += op;
  return sum;
}

std::vector<bool> recomputed_units(const RunConfig& config) {
  std::vector<bool> recomputed(static_cast<size_t>(config.model.num_layers) + 2, false);
  if (config.memory.recompute == RecomputeKind::none) return recomputed;
  const int64_t interval = config.memory.recompute == RecomputeKind::block ? 1 : config.memory.recompute_interval;
  for (int64_t layer = 0; layer < config.model.num_layers; layer += interval)
    recomputed[static_cast<size_t>(layer) + 1] = true;
  return recomputed;
}

TrainingStep::TrainingStep(const RunConfig& config, const StepPlan& plan, Backend& backend)
    : config_(config),
      backend_(backend),
      spec_(make_spec(config.model)),
      layout_(make_layout(spec_)),
      schedule_(one_stage_schedule(static_cast<int32_t>(config.batch.accumulation), recomputed_units(config))),
      evaluation_(evaluation_schedule(recomputed_units(config))),
      counted_tokens_(config.batch.global * config.model.sequence_length),
      state_(nullptr),
      data_group_(std::move(make_local_group(1).front())) {
  for (size_t c = 0; c < num_memory_classes; ++c) {
    // The ring of micro-batches is host memory and belongs to whoever reads them.
    const bool data = c == static_cast<size_t>(MemoryClass::data);
    arenas_[c] = backend_.allocate(plan.memory.bytes[c] - (data ? all_rings_bytes(config_) : 0));
  }
  const int64_t scratch = align_up(plan.scratch_bytes);
  backend_.set_scratch(arena(MemoryClass::workspace), scratch);
  workspace_ = Workspace(arena(MemoryClass::workspace) + scratch, plan.memory[MemoryClass::workspace] - scratch);
  state_ = reinterpret_cast<StepState*>(arena(MemoryClass::state));
  backend_.upload(state_, &host_state_, sizeof(StepState));

  const ParameterMemory parameters{arena(MemoryClass::weights), master(), arena(MemoryClass::gradients)};
  units_ = std::make_unique<Units>(step_shape(config, true), spec_, layout_, parameters, backend_);
  evaluation_units_ = std::make_unique<Units>(step_shape(config, false), spec_, layout_, parameters, backend_);
  const bool mixed = config.precision.compute != DType::f32;
  const OptimizerMemory optimizer{
      .master = master(),
      .exp_avg = arena(MemoryClass::moments),
      .exp_avg_sq = arena(MemoryClass::moments) + layout_.elements * dtype_bytes(DType::f32),
      .gradients = arena(MemoryClass::gradients),
      .weights = mixed ? arena(MemoryClass::weights) : nullptr,
      .tables = arena(MemoryClass::state) + align_up(sizeof(StepState))};
  update_ = std::make_unique<AdamWRule>(config.optimizer, config.precision.compute, spec_, layout_, optimizer, state_,
                                        backend_);
  executor_ = std::make_unique<Executor>(*units_, layout_, schedule_, arena_memory(), workspace_, backend_,
                                         *data_group_, update_.get());
  evaluation_executor_ = std::make_unique<Executor>(*evaluation_units_, layout_, evaluation_, arena_memory(),
                                                    workspace_, backend_, *data_group_, nullptr);
}

MemoryPlan TrainingStep::taken() const {
  MemoryPlan taken;
  for (size_t c = 0; c < num_memory_classes; ++c) taken.bytes[c] = arenas_[c]->bytes();
  taken[MemoryClass::data] += all_rings_bytes(config_);
  return taken;
}

std::byte* TrainingStep::master() const {
  return arena(config_.precision.compute == DType::f32 ? MemoryClass::weights : MemoryClass::master);
}

ArenaMemory TrainingStep::arena_memory() const {
  return {arena(MemoryClass::activations), arena(MemoryClass::data), arena(MemoryClass::gradients), state_};
}

void TrainingStep::initialize(const std::function<void(int64_t)>& progress) {
  std::vector<float> chunk(static_cast<size_t>(std::min(2 * layout_.elements, upload_chunk_elements)), 0.0F);
  const auto zero = [&](std::byte* buffer, int64_t elements) {
    std::fill(chunk.begin(), chunk.end(), 0.0F);
    for (int64_t first = 0; first < elements; first += upload_chunk_elements) {
      const int64_t count = std::min(upload_chunk_elements, elements - first);
      backend_.upload(buffer + first * dtype_bytes(DType::f32), chunk.data(), count * dtype_bytes(DType::f32));
    }
  };
  zero(master(), layout_.elements);
  zero(arena(MemoryClass::moments), 2 * layout_.elements);
  int64_t drawn = 0;
  for (const StateTensor& tensor : state_tensors()) {
    const TensorSpec& spec = spec_.tensors[static_cast<size_t>(tensor.tensor)];
    for (int64_t first = 0; first < tensor.count; first += upload_chunk_elements) {
      const int64_t count = std::min(upload_chunk_elements, tensor.count - first);
      initial_values(spec, config_.run.seed, first, count, chunk.data());
      backend_.upload(tensor.weight + first, chunk.data(), count * dtype_bytes(DType::f32));
      drawn += count;
      if (progress) progress(drawn);
    }
  }
  set_updates(0);
  weights_changed();
}

void TrainingStep::weights_changed() {
  if (config_.precision.compute == DType::f32) return;
  backend_.run(Cast{.from = Matrix(master(), DType::f32, 1, layout_.elements),
                    .to = Matrix(arena(MemoryClass::weights), config_.precision.compute, 1, layout_.elements)});
}

void TrainingStep::set_updates(int64_t updates) {
  host_state_.updates = updates;
  backend_.upload(state_, &host_state_, sizeof(StepState));
}

StepResult TrainingStep::run(double learning_rate, MicroBatchSource& source, ActionObserver* observer) {
  host_state_.learning_rate = static_cast<float>(learning_rate);
  host_state_.inverse_tokens = static_cast<float>(1.0 / static_cast<double>(counted_tokens_));
  host_state_.loss_sum = 0;
  host_state_.squared_norm = 0;
  host_state_.gradient_scale = 0;
  host_state_.skip = 0;
  backend_.upload(state_, &host_state_, offsetof(StepState, updates));
  executor_->play(source, observer);
  backend_.download(&host_state_, state_, sizeof(StepState));
  backend_.synchronize();
  return {host_state_.loss_sum / static_cast<double>(counted_tokens_), std::sqrt(host_state_.squared_norm),
          host_state_.skip != 0, host_state_.updates};
}

double TrainingStep::evaluate(int64_t micro_batches, MicroBatchSource& source) {
  host_state_.loss_sum = 0;
  backend_.upload(state_, &host_state_, sizeof(StepState));
  for (int64_t i = 0; i < micro_batches; ++i) evaluation_executor_->play(source, nullptr);
  backend_.download(&host_state_, state_, sizeof(StepState));
  backend_.synchronize();
  return host_state_.loss_sum;
}

std::vector<TrainingStep::StateTensor> TrainingStep::state_tensors() const {
  std::vector<StateTensor> tensors;
  auto* weight = reinterpret_cast<float*>(master());
  auto* moments = reinterpret_cast<float*>(arena(MemoryClass::moments));
  auto* gradient = reinterpret_cast<float*>(arena(MemoryClass::gradients));
  for (size_t i = 0; i < spec_.tensors.size(); ++i) {
    // Padding is whole rows at the end, so the true elements come first.
    const int64_t offset = layout_.segments[i].offset;
    tensors.push_back({static_cast<int64_t>(i), weight + offset, moments + offset, moments + layout_.elements + offset,
                       gradient + offset, spec_.tensors[i].count()});
  }
  return tensors;
}

StepPlan plan_step(const RunConfig& config, const Target& target) {
  StepPlan plan;
  plan.spec = make_spec(config.model);
  const ParameterLayout layout = make_layout(plan.spec);
  PlanBackend backend(target);
  {
    const Schedule schedule =
        one_stage_schedule(static_cast<int32_t>(config.batch.accumulation), recomputed_units(config));
    const Units units(step_shape(config, true), plan.spec, layout, {}, backend);
    plan.memory = arena_bytes(config, plan.spec, layout, SlotMap(units, schedule));
  }
  // Room without end: the run itself tells how much it takes.
  plan.memory[MemoryClass::workspace] = std::numeric_limits<int64_t>::max() / 4;
  TrainingStep step(config, plan, backend);
  PlanObserver observer(backend, static_cast<int32_t>(plan.spec.units.size()));
  NoMicroBatches source;
  step.run(0, source, &observer);
  plan.ops = backend.ops();
  plan.frame_bytes = step.workspace().high_water_bytes();
  plan.scratch_bytes = backend.scratch_bytes();
  plan.memory[MemoryClass::workspace] = align_up(plan.scratch_bytes) + plan.frame_bytes;
  return plan;
}

}  // namespace gptrain
