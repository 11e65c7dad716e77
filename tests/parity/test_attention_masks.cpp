// Attention masks in whole training steps: documents packed into one sample, padding after them, and windows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "catch.h"
#include "fit/choose_step.h"
#include "model_fixture.h"

namespace test_attention_masks {

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

// Returns the same sample every time.
class OneSample : public MicroBatchSource {
 public:
  OneSample(std::vector<int32_t> tokens, std::vector<int32_t> targets, std::vector<int32_t> document_starts)
      : tokens_(std::move(tokens)), targets_(std::move(targets)), document_starts_(std::move(document_starts)) {
    view_ = {.tokens = tokens_.data(),
             .targets = targets_.data(),
             .sample_ids = &sample_,
             .document_starts = document_starts_.data()};
  }
  const MicroBatch& next() override { return view_; }

 private:
  std::vector<int32_t> tokens_, targets_, document_starts_;
  int64_t sample_ = 0;
  MicroBatch view_;
};

// Sums over a sample's tokens, of losses and of their gradients by tensor.
struct Sums {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
};

Sums sums_of(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
             const std::vector<int32_t>& document_starts, bool masked) {
  const int64_t counted = std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
  const auto count = static_cast<double>(counted);
  const RunConfig config =
      small_config(Family::llama, {"model.sequence_length=" + std::to_string(tokens.size()), "batch.global=1",
                                   "batch.micro=1", masked ? "data.mask_documents=true" : "data.mask_documents=false"});
  const auto backend = make_cpu_backend(2);
  testing::OneRank rank(config);
  TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
  step.initialize();
  OneSample source(tokens, targets, document_starts);
  Sums sums;
  sums.loss = step.run(0, source, nullptr, {}, counted).loss * count;
  for (const StateSlice& piece : step.state()) {
    std::vector<double>& gradient = sums.gradients[step.spec().tensors[static_cast<size_t>(piece.tensor)].name];
    for (int64_t i = 0; i < piece.count(); ++i) gradient.push_back(count * static_cast<double>(piece.gradient[i]));
  }
  return sums;
}

// Relative L2 distance.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

// Sums for packed documents, and for the documents run separately and added up.
struct Comparison {
  Sums packed, alone;
};

// Compares `first` tokens of one document and the rest of another, of lengths that leave both with partial tiles.
Comparison compare(size_t first, size_t length, bool masked) {
  std::vector<int32_t> tokens, targets, starts(length, 0);
  for (size_t t = 0; t <= length; ++t)
    tokens.push_back(static_cast<int32_t>(philox({1, 2}, {static_cast<uint32_t>(t), 0, 0, 0})[0] % 101));
  targets.assign(tokens.begin() + 1, tokens.end());
  tokens.pop_back();
  std::fill(starts.begin() + static_cast<int64_t>(first), starts.end(), static_cast<int32_t>(first));
  const auto part = [](const std::vector<int32_t>& all, size_t begin, size_t end) {
    return std::vector<int32_t>(all.begin() + static_cast<int64_t>(begin), all.begin() + static_cast<int64_t>(end));
  };
  Comparison result{sums_of(tokens, targets, starts, masked), {}};
  for (const auto& [begin, end] : {std::pair{size_t{0}, first}, {first, length}}) {
    const Sums one = sums_of(part(tokens, begin, end), part(targets, begin, end), {}, false);
    result.alone.loss += one.loss;
    for (const auto& [name, gradient] : one.gradients) {
      std::vector<double>& sum = result.alone.gradients[name];
      sum.resize(gradient.size());
      for (size_t i = 0; i < gradient.size(); ++i) sum[i] += gradient[i];
    }
  }
  return result;
}

struct Outcome {
  double loss, norm;
  bool operator==(const Outcome&) const = default;
};

Outcome third_step(const std::vector<std::string>& overrides) {
  const RunConfig config = small_config(Family::gpt2, overrides);
  const auto backend = make_cpu_backend(2);
  testing::OneRank rank(config);
  TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
  step.initialize();
  RandomBatches batches(config);
  for (int i = 0; i < 2; ++i) step.run(1e-3, batches);
  const StepResult result = step.run(1e-3, batches);
  return {result.loss, result.grad_norm};
}

}  // namespace

TEST_CASE("a sample of two documents has the losses and gradients of the two alone") {
  // Positions continue in the second document, which rotary embeddings do not notice.
  for (const auto& [first, length] : {std::pair<size_t, size_t>{5, 12}, {64, 131}, {1, 70}, {69, 70}}) {
    INFO(first << " of " << length << " tokens");
    const Comparison masked = compare(first, length, true);
    CHECK(masked.packed.loss == Approx(masked.alone.loss).epsilon(1e-6));
    for (const auto& [name, gradient] : masked.packed.gradients) {
      INFO(name);
      CHECK(distance(gradient, masked.alone.gradients.at(name)) < 2e-5);
    }
  }
  const Comparison joined = compare(64, 131, false);
  CHECK(distance(joined.packed.gradients.at("blocks.0.attention.qkv.weight"),
                 joined.alone.gradients.at("blocks.0.attention.qkv.weight")) > 1e-2);
}

TEST_CASE("padding changes neither losses nor gradients") {
  const auto token = [](size_t t) {
    return static_cast<int32_t>(philox({3, 4}, {static_cast<uint32_t>(t), 0, 0, 0})[0] % 101);
  };
  for (const bool masked : {false, true}) {
    for (const auto& [inputs, length] : {std::pair<size_t, size_t>{5, 19}, {69, 70}, {64, 131}, {2, 40}}) {
      INFO(inputs << " of " << length << " places" << (masked ? ", masked" : ""));
      std::vector<int32_t> tokens, targets, starts(length, 0);
      for (size_t t = 0; t < inputs; ++t) tokens.push_back(token(t));
      for (size_t t = 0; t < inputs; ++t) targets.push_back(token(t + 1));
      const Sums alone = sums_of(tokens, targets, std::vector<int32_t>(inputs, 0), masked);
      tokens.resize(length, 0);
      targets.resize(length, -1);
      std::fill(starts.begin() + static_cast<int64_t>(inputs), starts.end(), static_cast<int32_t>(inputs));
      const Sums padded = sums_of(tokens, targets, starts, masked);
      CHECK(padded.loss == Approx(alone.loss).epsilon(1e-6));
      for (const auto& [name, gradient] : padded.gradients) {
        INFO(name);
        CHECK(distance(gradient, alone.gradients.at(name)) < 2e-5);
      }
    }
  }
}

TEST_CASE("masks that leave nothing out change no bit, others do") {
  const Outcome plain = third_step({});
  CHECK(third_step({"model.attention_window=19"}) == plain);
  CHECK_FALSE(third_step({"model.attention_window=18"}) == plain);
  CHECK(third_step({R"(model.attention_pattern=["band:19","dense"])"}) == plain);
  const Outcome middle = third_step({R"(model.attention_pattern=["dense","band:5"])"});
  CHECK_FALSE(middle == plain);
  CHECK(third_step({R"(model.attention_pattern=["dense","band:5"])", "memory.recompute=block"}) == middle);
  CHECK_FALSE(third_step({R"(model.attention_pattern=["band:5","dense"])"}) == middle);
  CHECK(third_step({R"(model.attention_pattern=["fixed:5,1","strided:4","columns:3+global:2"])"}) != middle);
  CHECK_FALSE(third_step({"data.mask_documents=true"}) == plain);
  CHECK(third_step({"data.mask_documents=true", "memory.recompute=block"}) == third_step({"data.mask_documents=true"}));
}

}  // namespace test_attention_masks
