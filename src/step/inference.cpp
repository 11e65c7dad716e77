#include "step/inference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/enum_array.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/contents.h"
#include "model/micro_batch.h"
#include "ops/plan/plan_backend.h"
#include "parallel/executor.h"

namespace gptrain::inline step {
namespace {

namespace fs = std::filesystem;

// Arenas of a pass, beside weights and scratch.
constexpr MemoryClass pass_classes[] = {MemoryClass::activations, MemoryClass::data, MemoryClass::workspace};

// Turns off ZeRO and sequence parallelism: a pass over one sequence has few rows, and updates no weights.
RunConfig for_inference(RunConfig config) {
  config = with_whole_experts(std::move(config));
  config.parallel.zero = 0;
  config.parallel.sequence = false;
  return config;
}

// Returns one sequence as a micro-batch.
class OneSequence : public MicroBatchSource {
 public:
  explicit OneSequence(int64_t capacity)
      : tokens_(capacity), targets_(tokens_.size(), -1), document_starts_(tokens_.size()) {
    batch_ = {tokens_.data(), targets_.data(), &sample_, document_starts_.data()};
  }
  // Sets the tokens of `sequence` from index `first` on. Padding follows, to which no earlier position attends.
  // `begin`: index in `sequence` at which the document begins.
  void set(const std::vector<int32_t>& sequence, int64_t first, int64_t begin) {
    std::fill(tokens_.begin(), tokens_.end(), 0);
    std::copy(sequence.begin() + first, sequence.end(), tokens_.begin());
    const auto start = static_cast<int32_t>(std::max<int64_t>(begin - first, 0));
    std::fill(document_starts_.begin() + start, document_starts_.end(), start);
  }
  const MicroBatch& next() override { return batch_; }

 private:
  std::vector<int32_t> tokens_, targets_, document_starts_;
  int64_t sample_ = 0;
  MicroBatch batch_;
};

void load_weights_alone(const StepDesign& design, const fs::path& checkpoint, WhichWeights which, std::byte* weights) {
  if (which == WhichWeights::averaged) require_weights(read_contents(checkpoint), which);
  auto* const start = reinterpret_cast<float*>(weights);
  std::vector<Slice> slices;
  for (size_t i = 0; i < design.spec->tensors.size(); ++i) {
    const TensorSpec& tensor = design.spec->tensors[i];
    if (design.layout.units[tensor.unit].elements == 0) continue;  // another stage's
    for (const ShardBox& box : (*design.shards)[i].boxes) {
      slices.push_back({.name = stored_name(which, tensor.name),
                        .global_shape = tensor.shape,
                        .box = box,
                        .data = start + design.layout.segments[i].offset + box.local_offset});
    }
  }
  load_slices(checkpoint, slices);
}

}  // namespace

// Passes over sequences of one length, in memory of the caller.
class Inference::Pass {
 public:
  Pass(const RunConfig& config, int64_t length, RankGroups& groups, Backend& backend)
      : design_(design_inference(config, backend.target(), groups, length)),
        backend_(backend),
        groups_(groups),
        gathers_(design_.spec->units.size(), Lane::done),
        source_(length) {
    plan_workspace();
  }

  int64_t length() const { return design_.evaluation_shape.sequence_length; }
  // Returns the bytes of each class that passes take, without scratch.
  MemoryPlan memory() const {
    MemoryPlan memory = design_.memory.arenas;
    memory[MemoryClass::workspace] = frame_bytes_;
    return memory;
  }
  int64_t scratch_bytes() const { return align_up(scratch_bytes_); }

  // Sets the memory. Call before the first pass, and whenever the memory has moved.
  void set_memory(std::byte* weights,
                  const EnumArray<MemoryClass, std::unique_ptr<DeviceMemory>, num_memory_classes>& arenas) {
    const DeviceMemory& frames = *arenas[MemoryClass::workspace];
    workspace_ = Workspace(frames.data(), frames.bytes());
    parameters_ = std::make_unique<ParameterStore>(*design_.spec, *design_.shards, design_.layout, design_.sharding,
                                                   ParameterBuffers{.weights = weights});
    ExecutorResources resources{
        .workspace = &workspace_, .backend = &backend_, .groups = &groups_, .gathers = &gathers_};
    for (size_t c = 0; c < num_memory_classes; ++c)
      resources.arenas.at(MemoryPlace::device, static_cast<MemoryClass>(c)) = arenas[c] ? arenas[c]->data() : nullptr;
    model_ = make_model(design_, design_.evaluation_shape, backend_, groups_);
    executor_ = std::make_unique<Executor>(*model_, *design_.evaluation, *parameters_, resources, nullptr);
  }

  std::vector<float> next_logits(const std::vector<int32_t>& sequence, int64_t begin) {
    const auto size = static_cast<int64_t>(sequence.size());
    const int64_t seen = std::min(size, length());
    source_.set(sequence, size - seen, begin);
    executor_->play(source_, nullptr);
    if (!design_.stages.last()) return {};
    const int64_t ranks = groups_.num_ranks(GroupKind::tensor);
    WorkspaceFrame frame(workspace_);
    const Matrix all = room_for_logits(frame);
    const Matrix own = all.row_range(design_.tensor.rank, 1);
    model_->head().logits(executor_->call_of(forward_of_head()), seen - 1, own);
    backend_.synchronize();
    if (ranks > 1) groups_.group(GroupKind::tensor)->all_gather(own.data, all.data, slice_size(), DType::f32);
    if (design_.tensor.rank > 0) return {};
    const auto* const first = all.as<const float>();
    std::vector<float> logits(first, first + design_.config.model.vocab_size);
    if (const auto cap = static_cast<float>(design_.config.model.logit_softcap); cap > 0)
      for (float& logit : logits) logit = cap * std::tanh(logit / cap);
    return logits;
  }

 private:
  // Returns the rows of the vocabulary on a tensor rank.
  int64_t slice_size() const {
    return vocabulary_rows(design_.config.model.vocab_size, groups_.num_ranks(GroupKind::tensor));
  }
  // Takes memory for the logits of one position, with a row for each tensor rank's slice of the vocabulary.
  Matrix room_for_logits(WorkspaceFrame& frame) const {
    return frame.take(DType::f32, groups_.num_ranks(GroupKind::tensor), slice_size());
  }

  const Action& forward_of_head() const {
    const Schedule& schedule = design_.evaluation->schedule;
    return *std::find_if(schedule.actions.begin(), schedule.actions.end(), [&](const Action& action) {
      return action.kind == ActionKind::forward && action.unit + 1 == schedule.num_layers();
    });
  }

  // Plays the pass on the `plan` backend to find the bytes of its frames and scratch.
  void plan_workspace() {
    PlanBackend plan(backend_.target());
    RankGroups groups(design_.config, groups_.mesh().world_size(), groups_.rank());
    const auto model = make_model(design_, design_.evaluation_shape, plan, groups);
    const ParameterStore parameters(*design_.spec, *design_.shards, design_.layout, design_.sharding, {});
    Workspace unlimited(nullptr, std::numeric_limits<int64_t>::max() / 4);
    ExecutorResources resources{.workspace = &unlimited, .backend = &plan, .groups = &groups, .gathers = &gathers_};
    Executor executor(*model, *design_.evaluation, parameters, resources, nullptr);
    executor.play(source_, nullptr);
    if (design_.stages.last()) {
      WorkspaceFrame frame(unlimited);
      model->head().logits(executor.call_of(forward_of_head()), 0, room_for_logits(frame).row_range(0, 1));
    }
    frame_bytes_ = unlimited.high_water_bytes();
    scratch_bytes_ = std::max<int64_t>(plan.scratch_bytes(), 1);
  }

  const StepDesign design_;
  Backend& backend_;
  RankGroups& groups_;
  UnitTickets gathers_;
  OneSequence source_;
  int64_t frame_bytes_ = 0, scratch_bytes_ = 0;
  Workspace workspace_;
  std::unique_ptr<ParameterStore> parameters_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Executor> executor_;
};

RunConfig with_whole_experts(RunConfig config) {
  config.parallel.expert = config.parallel.expert_tensor = 1;
  return config;
}

int64_t most_tokens_of_sample(const RunSettings& run) {
  constexpr int64_t before_prompt = 2;  // the end of a document, and a space
  return before_prompt + static_cast<int64_t>(run.sample_prompt.size()) + run.sample_tokens;
}

Inference::Inference(const RunConfig& config, const fs::path& checkpoint, WhichWeights weights, RankGroups& groups,
                     Backend& backend)
    : config_(for_inference(config)), groups_(groups), backend_(backend) {
  const StepDesign shortest = design_inference(config_, backend.target(), groups, 1);
  weights_ = backend.allocate(shortest.memory.arenas[MemoryClass::weights]);
  load_weights_alone(shortest, checkpoint, weights, weights_->data());
}

Inference::~Inference() = default;

int64_t Inference::bytes(const RunConfig& config, const Target& target, RankGroups& groups, int64_t size) {
  PlanBackend backend(target);
  const Pass pass(for_inference(config), length_for(config, size), groups, backend);
  const MemoryPlan memory = pass.memory();
  int64_t bytes = memory[MemoryClass::weights] + pass.scratch_bytes();
  for (const MemoryClass c : pass_classes) bytes += memory[c];
  return bytes;
}

int64_t Inference::length_for(const StepConfig& config, int64_t size) {
  constexpr int64_t step = 64;
  return std::min((size + step - 1) / step * step, config.model.sequence_length);
}

void Inference::reserve(int64_t size) {
  const int64_t length = length_for(config_, size);
  if (pass_ && pass_->length() == length) return;
  pass_.reset();
  auto pass = std::make_unique<Pass>(config_, length, groups_, backend_);
  const MemoryPlan memory = pass->memory();
  for (const MemoryClass c : pass_classes) {
    std::unique_ptr<DeviceMemory>& arena = arenas_[c];
    if (arena && arena->bytes() >= memory[c]) continue;
    arena.reset();
    arena = backend_.allocate(memory[c]);
  }
  if (!scratch_ || scratch_->bytes() < pass->scratch_bytes()) {
    scratch_.reset();
    scratch_ = backend_.allocate(pass->scratch_bytes());
  }
  backend_.set_scratch(scratch_->data(), scratch_->bytes());
  pass->set_memory(weights_->data(), arenas_);
  pass_ = std::move(pass);
}

std::vector<float> Inference::next_logits(const std::vector<int32_t>& sequence, int64_t begin) {
  reserve(static_cast<int64_t>(sequence.size()));
  return pass_->next_logits(sequence, begin);
}

}  // namespace gptrain::step
