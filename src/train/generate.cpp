#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_check.h"
#include "comm/world.h"
#include "data/pack.h"
#include "ops/backend.h"
#include "ops/plan/plan_backend.h"
#include "parallel/executor.h"
#include "parallel/groups.h"
#include "parallel/parameters.h"
#include "train/run_state.h"
#include "train/step_design.h"

namespace gptrain {
namespace {

namespace fs = std::filesystem;

// The tokens of one sequence as a micro-batch of one.
class OneSequence : public MicroBatchSource {
 public:
  explicit OneSequence(int64_t capacity)
      : tokens_(static_cast<size_t>(capacity)), targets_(tokens_.size(), -1), document_starts_(tokens_.size()) {
    batch_ = {tokens_.data(), targets_.data(), &sample_, document_starts_.data()};
  }
  // The last `tokens` fit; the rest is padding that no earlier position attends to.
  void set(const std::vector<int32_t>& sequence, int64_t first) {
    std::fill(tokens_.begin(), tokens_.end(), 0);
    std::copy(sequence.begin() + first, sequence.end(), tokens_.begin());
    // The sequence's first token ends a document, all others are the next one's.
    std::fill(document_starts_.begin() + 1, document_starts_.end(), first == 0 ? 1 : 0);
  }
  const MicroBatch& next() override { return batch_; }

 private:
  std::vector<int32_t> tokens_, targets_, document_starts_;
  int64_t sample_ = 0;
  MicroBatch batch_;
};

void load_weights(const StepDesign& design, const fs::path& checkpoint, const DeviceMemory& weights) {
  auto* const start = reinterpret_cast<float*>(weights.data());
  std::vector<Slice> slices;
  for (size_t i = 0; i < design.spec.tensors.size(); ++i) {
    const TensorSpec& tensor = design.spec.tensors[i];
    slices.push_back({.name = fmt::format("weight/{}", tensor.name),
                      .global_shape = tensor.shape,
                      .offset = std::vector<int64_t>(tensor.shape.size(), 0),
                      .shape = tensor.shape,
                      .data = start + design.layout.segments[i].offset});
  }
  load_slices(checkpoint, slices);
}

// A forward pass over one sequence of fixed length, with weights in f32 on one rank, and the logits of one of its
// positions.
class Inference {
 public:
  // Borrows all. `weights`: of design_inference for the same config.
  Inference(const RunConfig& config, RankGroups& groups, int64_t length, const DeviceMemory& weights, Backend& backend)
      : design_(design_inference(config, backend.target(), groups, length)),
        backend_(backend),
        groups_(groups),
        gathers_(design_.spec.units.size(), Lane::done),
        source_(length) {
    activations_ = backend.allocate(design_.memory.arenas[MemoryClass::activations]);
    data_ = backend.allocate(design_.memory.arenas[MemoryClass::data]);
    parameters_ = std::make_unique<ParameterStore>(design_.spec, design_.shards, design_.layout, design_.sharding,
                                                   ParameterBuffers{.weights = weights.data()});
    const auto [frames, scratch] = plan_workspace();
    scratch_ = backend.allocate(align_up(std::max(scratch, int64_t{1})));
    workspace_memory_ = backend.allocate(frames + align_up(padded_vocab() * dtype_bytes(DType::f32)));
    workspace_ = Workspace(workspace_memory_->data(), workspace_memory_->bytes());
    model_ = make_model(design_, design_.evaluation_shape, backend, groups);
    executor_ = std::make_unique<Executor>(*model_, *design_.evaluation, *parameters_, place_of(backend, workspace_),
                                           nullptr);
  }

  // Logits over the true vocabulary after `sequence`, of which the last `length` tokens are seen.
  std::vector<float> next_logits(const std::vector<int32_t>& sequence) {
    const int64_t length = design_.evaluation_shape.sequence_length;
    const auto size = static_cast<int64_t>(sequence.size());
    const int64_t seen = std::min(size, length);
    source_.set(sequence, size - seen);
    backend_.set_scratch(scratch_->data(), scratch_->bytes());
    executor_->play(source_, nullptr);
    const LayerCall call = executor_->call_of(design_.evaluation->schedule.actions.back());
    WorkspaceFrame frame(workspace_);
    const Matrix row = frame.take(DType::f32, 1, padded_vocab());
    model_->head().logits(call, seen - 1, row);
    std::vector<float> logits(static_cast<size_t>(design_.config.model.vocab_size));
    backend_.download(logits.data(), row.data, static_cast<int64_t>(logits.size() * sizeof(float)));
    backend_.synchronize();
    return logits;
  }

 private:
  int64_t padded_vocab() const { return vocabulary_rows(design_.config.model.vocab_size, 1); }

  Workplace place_of(Backend& backend, Workspace& workspace) {
    Workplace place{.workspace = &workspace, .backend = &backend, .groups = &groups_, .gathers = &gathers_};
    place.arenas[static_cast<size_t>(MemoryClass::activations)] = activations_->data();
    place.arenas[static_cast<size_t>(MemoryClass::data)] = data_->data();
    return place;
  }

  // Plays the pass on the `plan` backend: bytes of its frames, and of its scratch.
  std::pair<int64_t, int64_t> plan_workspace() {
    PlanBackend plan(backend_.target());
    const auto model = make_model(design_, design_.evaluation_shape, plan, groups_);
    Workspace unlimited(nullptr, std::numeric_limits<int64_t>::max() / 4);
    Executor executor(*model, *design_.evaluation, *parameters_, place_of(plan, unlimited), nullptr);
    executor.play(source_, nullptr);
    return {unlimited.high_water_bytes(), plan.scratch_bytes()};
  }

  const StepDesign design_;
  Backend& backend_;
  RankGroups& groups_;
  UnitTickets gathers_;
  OneSequence source_;
  std::unique_ptr<ParameterStore> parameters_;
  std::unique_ptr<DeviceMemory> activations_, data_, scratch_, workspace_memory_;
  Workspace workspace_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Executor> executor_;
};

int64_t sample(std::vector<float>& logits, const GenerateOptions& options, int64_t index) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return likeliest - logits.begin();
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size()))
    order.resize(static_cast<size_t>(options.top_k));
  const double top = *likeliest;
  std::vector<double> weights;
  for (const int64_t token : order)
    weights.push_back(std::exp((logits[static_cast<size_t>(token)] - top) / options.temperature));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto words = philox(random_key(options.seed, RandomUse::sampling),
                            {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0});
  double left = total * (1 - static_cast<double>(uniform_open_closed(words[0])));
  for (size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

}  // namespace

void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit) {
  const fs::path checkpoint = resolve_checkpoint(options.checkpoint);
  const Manifest manifest = read_manifest(checkpoint);
  RunConfig config = saved_config(checkpoint, manifest);
  if (config.model.vocab_size != bytes_vocabulary) {
    throw Error(ExitCode::usage, "{}: has a vocabulary of {}, and generate knows the tokenizer \"bytes\" only ({})",
                checkpoint.string(), config.model.vocab_size, bytes_vocabulary);
  }
  check_model(checkpoint);
  config.parallel = {};
  const auto backend = make_cpu_backend(0);
  const std::unique_ptr<World> world = std::move(make_local_world(1).front());
  RankGroups groups(config, *world);
  const StepDesign shortest = design_inference(config, backend->target(), groups, 1);
  const auto weights = backend->allocate(shortest.memory.arenas[MemoryClass::weights]);
  load_weights(shortest, checkpoint, *weights);

  emit(options.prompt);
  // A document starts after the end of another.
  std::vector<int32_t> sequence = {end_of_document};
  for (const char c : options.prompt) sequence.push_back(static_cast<unsigned char>(c));
  std::unique_ptr<Inference> inference;
  int64_t length = 0;
  for (int64_t i = 0; i < options.tokens; ++i) {
    // The pass grows with the text in steps, so that short texts do not pay for the model's whole length.
    constexpr int64_t length_step = 64;
    const auto needed = std::min((static_cast<int64_t>(sequence.size()) + length_step - 1) / length_step * length_step,
                                 config.model.sequence_length);
    if (needed > length) {
      inference = std::make_unique<Inference>(config, groups, needed, *weights, *backend);
      length = needed;
    }
    std::vector<float> logits = inference->next_logits(sequence);
    const int64_t token = sample(logits, options, i);
    if (token == end_of_document) return;
    sequence.push_back(static_cast<int32_t>(token));
    const char byte = static_cast<char>(token);
    emit(std::string_view(&byte, 1));
  }
}

}  // namespace gptrain
