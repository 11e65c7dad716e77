#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <new>
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
#include "comm/agree.h"
#include "comm/world.h"
#include "data/tokenizer/files.h"
#include "data/tokenizer/record.h"
#include "data/tokenizer/unicode.h"
#include "ops/backend.h"
#include "parallel/make_stages.h"
#include "step/inference.h"
#include "train/run_state.h"

namespace gptrain::inline train {
namespace {

namespace fs = std::filesystem;

int64_t sample(std::vector<float>& logits, const GenerateOptions& options, int64_t index, size_t prompt) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return likeliest - logits.begin();
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) order.resize(options.top_k);
  const double top = *likeliest;
  std::vector<double> weights;
  for (const int64_t token : order) weights.push_back(std::exp((logits[token] - top) / options.temperature));
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

struct Vocabulary {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<int32_t> end_token;  // ends each document, so it precedes the next one; none: documents have no end
};

Vocabulary find_vocabulary(const GenerateOptions& options, const fs::path& checkpoint, const StepConfig& config) {
  const std::optional<TokenizerRecord> record = read_tokenizer(checkpoint);
  if (!options.tokenizer.empty()) {
    const auto named = load_tokenizer(options.tokenizer);
    if (record && !is_same_tokenizer(make_tokenizer_record(*named, std::nullopt), *record)) {
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

RunConfig config_of(const fs::path& checkpoint, const ParallelConfig& parallel) {
  RunConfig config = saved_config(checkpoint, read_manifest(checkpoint));
  config.parallel = parallel;
  return config;
}

// Returns the rank that has the logits: the first tensor rank of the stage with the head.
int64_t rank_with_logits(const StepConfig& config, const Mesh& mesh) {
  const Stages stages = make_stages(config, 0, 1, false);
  return mesh.first_rank_of_stage(stages.stage_of_chunk(stages.chunk_of(stages.num_layers() - 1)));
}

// Continues prompts with the model of a checkpoint, on the CPUs of the ranks that share it.
class Generator {
 public:
  // Not collective. Borrows the options and the groups.
  Generator(const GenerateOptions& options, const ParallelConfig& parallel, RankGroups& groups)
      : options_(options),
        checkpoint_(resolve_checkpoint(options.checkpoint)),
        config_(config_of(checkpoint_, parallel)),
        vocabulary_(find_vocabulary(options, checkpoint_, config_)),
        groups_(groups),
        backend_(make_cpu_backend(options.threads)) {
    check_model(checkpoint_);
    for (const std::string& prompt : options.prompts) sequences_.push_back(encode_prompt(vocabulary_, prompt));
    // Only the first of the ranks that hold the same weights computes.
    if (groups.data_rank() > 0) return;
    inference_ = std::make_unique<Inference>(config_, checkpoint_, options.weights, groups, *backend_);
    size_t longest = 0;
    for (const std::vector<int32_t>& sequence : sequences_) longest = std::max(longest, sequence.size());
    inference_->reserve(std::max(static_cast<int64_t>(longest) + options.tokens, options.reserved_tokens));
  }

  void continue_prompt(size_t prompt, const std::function<void(std::string_view)>& emit) {
    std::vector<int32_t>& sequence = sequences_[prompt];
    for (int64_t i = 0; i < options_.tokens; ++i) {
      const int32_t token = next_token(sequence, i, prompt);
      if (vocabulary_.end_token == token) return;
      sequence.push_back(token);
      emit(vocabulary_.tokenizer->text_of(token));
    }
  }

 private:
  int32_t next_token(const std::vector<int32_t>& sequence, int64_t index, size_t prompt) {
    const int64_t begin = vocabulary_.end_token ? 1 : 0;
    std::vector<float> logits;
    if (inference_) logits = inference_->next_logits(sequence, begin);
    int32_t token = -1;
    if (!logits.empty()) {
      // Exclude ids that the tokenizer does not have: training never saw them.
      for (size_t id = 0; id < logits.size(); ++id) {
        if (!vocabulary_.tokenizer->has(static_cast<int64_t>(id))) logits[id] = -std::numeric_limits<float>::infinity();
      }
      token = static_cast<int32_t>(sample(logits, options_, index, prompt));
    }
    if (Communicator* const all = groups_.group(GroupKind::world))
      all->broadcast(&token, 1, DType::i32, static_cast<int>(rank_with_logits(config_, groups_.mesh())));
    return token;
  }

  const GenerateOptions& options_;
  const fs::path checkpoint_;
  const RunConfig config_;
  const Vocabulary vocabulary_;
  RankGroups& groups_;
  const std::unique_ptr<Backend> backend_;
  std::vector<std::vector<int32_t>> sequences_;
  std::unique_ptr<Inference> inference_;  // null on ranks that do not compute
};

}  // namespace

void generate(const GenerateOptions& options, const std::function<void(size_t, std::string_view)>& emit) {
  const fs::path checkpoint = resolve_checkpoint(options.checkpoint);
  const auto world = std::move(make_local_world(1).front());
  RankGroups groups(config_of(checkpoint, {}), *world);
  Generator generator(options, {}, groups);
  for (size_t i = 0; i < options.prompts.size(); ++i) {
    emit(i, options.prompts[i]);
    generator.continue_prompt(i, [&](std::string_view text) { emit(i, text); });
  }
}

SharedText generate_sharded(const GenerateOptions& options, const ParallelConfig& parallel, RankGroups& groups,
                            const World& world) {
  std::unique_ptr<Generator> generator;
  const std::vector<std::string> reasons = agree(groups.group(GroupKind::world), world, [&]() -> std::string {
    try {
      generator = std::make_unique<Generator>(options, parallel, groups);
      return "";
    } catch (const Error& error) {
      return error.what();
    } catch (const std::bad_alloc&) {
      return "no memory for the model's weights in fp32";
    }
  });
  for (const std::string& of_rank : reasons) {
    if (!of_rank.empty()) return {.text = std::nullopt, .reason = of_rank};
  }
  std::string text;
  generator->continue_prompt(0, [&](std::string_view piece) { text += piece; });
  return {.text = std::move(text)};
}

}  // namespace gptrain::train
