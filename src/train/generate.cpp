#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <numeric>
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

// A model's weights in f32 on one rank.
struct Model {
  Model(const RunConfig& run_config, Backend& backend)
      : config(run_config.model),
        mask_documents(run_config.data.mask_documents),
        spec(make_spec(config)),
        shards(shard_tensors(spec, {})),
        layout(make_layout(spec, shards, 1)),
        weights(backend.allocate(layout.elements * dtype_bytes(DType::f32))),
        parameters(spec, shards, layout, Sharding{}, ParameterBuffers{.weights = weights->data()}),
        world(std::move(make_local_world(1).front())),
        groups(run_config, *world),
        gathers(spec.units.size(), CollectiveStream::done) {}

  void load(const fs::path& checkpoint) {
    auto* const start = reinterpret_cast<float*>(weights->data());
    std::vector<Slice> slices;
    for (size_t i = 0; i < spec.tensors.size(); ++i) {
      slices.push_back({.name = fmt::format("weight/{}", spec.tensors[i].name),
                        .global_shape = spec.tensors[i].shape,
                        .offset = std::vector<int64_t>(spec.tensors[i].shape.size(), 0),
                        .shape = spec.tensors[i].shape,
                        .data = start + layout.segments[i].offset});
    }
    load_slices(checkpoint, slices);
  }

  ModelConfig config;
  bool mask_documents;
  ModelSpec spec;
  std::vector<TensorShard> shards;
  ParameterLayout layout;
  std::unique_ptr<DeviceMemory> weights;
  ParameterStore parameters;
  std::unique_ptr<World> world;
  RankGroups groups;
  UnitTickets gathers;
  std::vector<PartialSum> no_sums;
};

// A forward pass over one sequence of fixed length, and the logits of one of its positions.
class Inference {
 public:
  Inference(Model& model, int64_t length, Backend& backend)
      : model_(model),
        backend_(backend),
        schedule_(forward_schedule(model)),
        units_(StepShape{.model = model.config,
                         .precision = {DType::f32, DType::f32},
                         .batch = 1,
                         .sequence_length = length,
                         .loss_chunk_tokens = 1,
                         .seed = 0,
                         .training = false,
                         .mask_documents = model.mask_documents},
               model.spec, model.shards, model.layout, {}, backend),
        slots_(units_, schedule_),
        source_(length) {
    activations_ = backend.allocate(slots_.activation_bytes());
    data_ = backend.allocate(slots_.data_bytes());
    const int64_t frames = plan_frames();
    scratch_ = backend.allocate(align_up(std::max(scratch_bytes_, int64_t{1})));
    workspace_memory_ = backend.allocate(frames + align_up(padded_vocab() * dtype_bytes(DType::f32)));
    workspace_ = Workspace(workspace_memory_->data(), workspace_memory_->bytes());
    executor_ = std::make_unique<Executor>(units_, model_.parameters, schedule_, model_.no_sums,
                                           ArenaMemory{activations_->data(), data_->data(), nullptr, nullptr},
                                           workspace_, backend, model_.groups, model_.gathers, nullptr);
  }

  // Logits over the true vocabulary after `sequence`, of which the last `length` tokens are seen.
  std::vector<float> next_logits(const std::vector<int32_t>& sequence) {
    const int64_t length = units_.shape().sequence_length;
    const auto size = static_cast<int64_t>(sequence.size());
    const int64_t seen = std::min(size, length);
    source_.set(sequence, size - seen);
    backend_.set_scratch(scratch_->data(), scratch_->bytes());
    executor_->play(source_, nullptr);
    UnitCall call = slots_.call(schedule_.actions.back(), activations_->data(), data_->data());
    call.head_matrix = model_.parameters.whole(model_.config.tied_head ? 0 : model_.parameters.num_units() - 1);
    WorkspaceFrame frame(workspace_);
    const Matrix row = frame.take(DType::f32, 1, padded_vocab());
    units_.logits(call, seen - 1, row);
    std::vector<float> logits(static_cast<size_t>(model_.config.vocab_size));
    backend_.download(logits.data(), row.data, static_cast<int64_t>(logits.size() * sizeof(float)));
    backend_.synchronize();
    return logits;
  }

 private:
  // The forward actions of an evaluation, without its loss.
  static Schedule forward_schedule(const Model& model) {
    Schedule schedule = evaluation_schedule(
        {.recomputed = std::vector<bool>(model.spec.units.size(), false), .tied_head = model.config.tied_head});
    schedule.actions.pop_back();
    return schedule;
  }

  int64_t padded_vocab() const { return vocabulary_rows(model_.config.vocab_size, 1); }

  // Runs the pass on the `plan` backend: the workspace of its frames; the scratch goes to scratch_bytes_.
  int64_t plan_frames() {
    PlanBackend plan(backend_.target());
    Units units(units_.shape(), model_.spec, model_.shards, model_.layout, {}, plan);
    Workspace unlimited(nullptr, std::numeric_limits<int64_t>::max() / 4);
    Executor executor(units, model_.parameters, schedule_, model_.no_sums, {}, unlimited, plan, model_.groups,
                      model_.gathers, nullptr);
    executor.play(source_, nullptr);
    scratch_bytes_ = plan.scratch_bytes();
    return unlimited.high_water_bytes();
  }

  Model& model_;
  Backend& backend_;
  Schedule schedule_;
  Units units_;
  SlotMap slots_;
  OneSequence source_;
  std::unique_ptr<DeviceMemory> activations_, data_, scratch_, workspace_memory_;
  int64_t scratch_bytes_ = 0;
  Workspace workspace_;
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
  Model model(config, *backend);
  model.load(checkpoint);

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
                                 model.config.sequence_length);
    if (needed > length) {
      inference = std::make_unique<Inference>(model, needed, *backend);
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
