#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "checkpoint/model_check.h"
#include "comm/world.h"
#include "data/tokenizer/files.h"
#include "data/tokenizer/record.h"
#include "data/tokenizer/unicode.h"
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
  // Only the last tokens fit. Behind them is padding, to which no earlier position attends. `begin`: where the document
  // begins in the sequence.
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

  // Logits over the true vocabulary after `sequence`, of which the last `length` tokens are seen, and whose document
  // begins at `begin`.
  std::vector<float> next_logits(const std::vector<int32_t>& sequence, int64_t begin) {
    const int64_t length = design_.evaluation_shape.sequence_length;
    const auto size = static_cast<int64_t>(sequence.size());
    const int64_t seen = std::min(size, length);
    source_.set(sequence, size - seen, begin);
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

int64_t sample(std::vector<float>& logits, const GenerateOptions& options, int64_t index, size_t prompt) {
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
  const auto words =
      philox(random_key(options.seed, RandomUse::sampling),
             {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(prompt), 0});
  double left = total * (1 - static_cast<double>(uniform_open_closed(words[0])));
  for (size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

// A tokenizer, and the token before the first of a document.
struct Vocabulary {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<int32_t> end_token;
};

Vocabulary find_vocabulary(const GenerateOptions& options, const fs::path& checkpoint, const RunConfig& config) {
  const std::optional<TokenizerRecord> record = read_tokenizer(checkpoint);
  if (!options.tokenizer.empty()) {
    const auto named = load_tokenizer(options.tokenizer);
    if (record && make_tokenizer_record(*named, std::nullopt).sha256 != record->sha256) {
      throw Error(ExitCode::usage, "--tokenizer {}: is not the tokenizer that {} was trained with", options.tokenizer,
                  checkpoint.string());
    }
    if (named->vocab_size() > config.model.vocab_size) {
      throw Error(ExitCode::usage, "--tokenizer {}: has {} tokens, and {} was trained with a vocabulary of {}",
                  options.tokenizer, named->vocab_size(), checkpoint.string(), config.model.vocab_size);
    }
    return {named, record ? record->end_token : named->end_of_document_id()};
  }
  if (record && !record->text.empty()) return {tokenizer_of(*record, checkpoint / tokenizer_name), record->end_token};
  if (!record && config.model.vocab_size == bytes_vocabulary) return {std::make_shared<Tokenizer>(), end_of_document};
  throw Error(ExitCode::usage, "{}: holds no tokenizer for its vocabulary of {}: name it with --tokenizer",
              checkpoint.string(), config.model.vocab_size);
}

std::vector<int32_t> encode_prompt(const Vocabulary& vocabulary, const std::string& prompt) {
  const size_t invalid = find_invalid_utf8(prompt);
  if (invalid < prompt.size() && !vocabulary.tokenizer->is_bytes()) {
    throw Error(ExitCode::usage, "a prompt is not UTF-8: byte 0x{:02x} at {}", static_cast<uint8_t>(prompt[invalid]),
                invalid);
  }
  std::vector<int32_t> sequence;
  if (vocabulary.end_token) sequence.push_back(*vocabulary.end_token);
  Encoder encoder(vocabulary.tokenizer);
  const std::span<const int32_t> ids = encoder.encode(prompt);
  sequence.insert(sequence.end(), ids.begin(), ids.end());
  if (sequence.empty()) {
    throw Error(ExitCode::usage,
                "a prompt is empty, and the model's documents have no end token for a text to begin with");
  }
  return sequence;
}

// The model of a checkpoint, on the CPU, and what grows with the text.
class Generator {
 public:
  explicit Generator(const GenerateOptions& options)
      : options_(options),
        checkpoint_(resolve_checkpoint(options.checkpoint)),
        config_(saved_config(checkpoint_, read_manifest(checkpoint_))),
        vocabulary_(find_vocabulary(options, checkpoint_, config_)) {
    check_model(checkpoint_);
    config_.parallel = {};
    backend_ = make_cpu_backend(options.threads);
    world_ = std::move(make_local_world(1).front());
    groups_ = std::make_unique<RankGroups>(config_, *world_);
    const StepDesign shortest = design_inference(config_, backend_->target(), *groups_, 1);
    weights_ = backend_->allocate(shortest.memory.arenas[MemoryClass::weights]);
    load_weights(shortest, checkpoint_, *weights_);
  }

  std::vector<int32_t> encode(const std::string& prompt) const { return encode_prompt(vocabulary_, prompt); }

  void go_on(size_t prompt, std::vector<int32_t> sequence, const std::function<void(std::string_view)>& emit) {
    const int64_t begin = vocabulary_.end_token ? 1 : 0;
    for (int64_t i = 0; i < options_.tokens; ++i) {
      reach(static_cast<int64_t>(sequence.size()));
      std::vector<float> logits = inference_->next_logits(sequence, begin);
      // What is no token of the tokenizer was never seen in training.
      for (size_t id = 0; id < logits.size(); ++id) {
        if (!vocabulary_.tokenizer->has(static_cast<int64_t>(id))) logits[id] = -std::numeric_limits<float>::infinity();
      }
      const auto token = static_cast<int32_t>(sample(logits, options_, i, prompt));
      if (vocabulary_.end_token == token) return;
      sequence.push_back(token);
      emit(vocabulary_.tokenizer->text_of(token));
    }
  }

 private:
  // The pass grows with the text in steps, so that short texts do not pay for the model's whole length.
  void reach(int64_t size) {
    constexpr int64_t length_step = 64;
    const int64_t needed =
        std::min((size + length_step - 1) / length_step * length_step, config_.model.sequence_length);
    if (needed <= length_) return;
    inference_.reset();
    inference_ = std::make_unique<Inference>(config_, *groups_, needed, *weights_, *backend_);
    length_ = needed;
  }

  const GenerateOptions& options_;
  const fs::path checkpoint_;
  RunConfig config_;
  const Vocabulary vocabulary_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<World> world_;
  std::unique_ptr<RankGroups> groups_;
  std::unique_ptr<DeviceMemory> weights_;
  std::unique_ptr<Inference> inference_;
  int64_t length_ = 0;
};

}  // namespace

void generate(const GenerateOptions& options, const std::function<void(size_t, std::string_view)>& emit) {
  Generator generator(options);
  std::vector<std::vector<int32_t>> sequences;
  for (const std::string& prompt : options.prompts) sequences.push_back(generator.encode(prompt));
  for (size_t i = 0; i < sequences.size(); ++i) {
    emit(i, options.prompts[i]);
    generator.go_on(i, std::move(sequences[i]), [&](std::string_view text) { emit(i, text); });
  }
}

}  // namespace gptrain
