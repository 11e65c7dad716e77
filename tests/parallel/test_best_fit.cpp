// Samples with padding (data pack --best-fit) over ranks: the loss is the mean over the counted targets of the whole
// batch, of which ranks have different numbers.
#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

#include "catch.h"
#include "data/best_fit.h"
#include "data/dataset.h"
#include "data/token_writer.h"
#include "differences.h"
#include "layouts.h"
#include "model_fixture.h"
#include "step/step_design.h"
#include "train/batches.h"
#include "unit/temporary_folder.h"

namespace test_best_fit {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr int64_t sequence_length = 20;
constexpr int64_t vocab_size = 201;

uint32_t random_word(uint32_t a, uint32_t b) { return philox({5, 6}, {a, b, 0, 0})[0]; }

// Documents of 1 to 33 tokens, some longer than a sample, most too long to share a sample with another.
class PackedFile {
 public:
  PackedFile() {
    TokenWriter writer(folder_ / "documents", DType::u16);
    for (uint32_t document = 0; document < 200; ++document) {
      const uint32_t length =
          random_word(document, 0) % 7 == 0 ? 1 + random_word(document, 1) % 33 : 11 + random_word(document, 1) % 8;
      for (uint32_t t = 0; t < length; ++t) {
        const auto id = static_cast<int32_t>((document * 13 + t * 7 + random_word(document, 2 + t) % 5) % vocab_size);
        writer.append(std::span(&id, 1));
      }
      writer.end_document();
    }
    writer.finish();
    result_ = write_best_fit(folder_ / "documents", folder_ / "packed", sequence_length);
  }

  Dataset open() const { return {{{folder_ / "packed", 1}}, sequence_length, vocab_size, 3, true}; }
  const BestFitResult& result() const { return result_; }

 private:
  TemporaryFolder folder_;
  BestFitResult result_;
};

// The samples of a dataset, read ahead as in a run.
class DataBatches : public MicroBatchSource {
 public:
  DataBatches(const RunConfig& config, const Dataset& data, int64_t rank, int64_t size)
      : memory_(static_cast<size_t>(depth * micro_batch_shape(config).bytes())),
        batches_(read_ahead(config, data, 0, {rank, size}, {.num_valid = 1, .depth = depth}, memory_.data())) {}
  const MicroBatch& next() override { return batches_.next(); }

 private:
  static constexpr int depth = 2;
  std::vector<std::byte> memory_;
  Prefetcher batches_;
};

RunConfig config_of(Family family, const std::vector<std::string>& layout, int64_t world_size) {
  std::vector<std::string> overrides = {
      "model.sequence_length=20", "model.vocab_size=201", "model.num_heads=4", "model.hidden_size=40",
      "optimizer.eps=1e-3",       "batch.global=8",       "batch.micro=2",     "model.tied_head=false"};
  overrides.insert(overrides.end(), layout.begin(), layout.end());
  return small_config(family, overrides, world_size);
}

Outcome train(const RunConfig& config, int64_t world_size, const Dataset& data, int steps, const GlobalState* start) {
  const auto make = [&](const RankContext& rank) {
    return std::make_unique<DataBatches>(config, data, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
  };
  const auto count = [&](int step) { return data.count_targets(step * config.batch.global, config.batch.global); };
  return train_on_batches(config, world_size, steps, start, {make, count});
}

}  // namespace

TEST_CASE("samples with padding have the losses and first moments of one rank on every layout", "[long]") {
  const PackedFile file;
  const Dataset data = file.open();
  REQUIRE(file.result().cut_documents > 0);
  // Ranks have different shares, so that a mean over ranks would be a different number.
  REQUIRE(data.count_targets(0, 2) != data.count_targets(2, 2));
  REQUIRE(data.count_targets(0, 8) < 8 * sequence_length);
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const std::string documents : {"data.mask_documents=false", "data.mask_documents=true"}) {
      const RunConfig alone = config_of(family, {documents}, 1);
      const GlobalState start = train(alone, 1, data, 10, nullptr).state;
      const Outcome one = train(alone, 1, data, 1, &start);
      struct Layout {
        int64_t world_size;
        std::vector<std::string> overrides;
        bool same_bits;
      };
      for (const Layout& layout :
           {Layout{1, {"batch.micro=8"}, false}, Layout{2, {"batch.micro=1", "parallel.zero=3"}, false},
            Layout{2, {"parallel.tensor=2", "parallel.sequence=true"}, false}, Layout{2, {"parallel.pipeline=2"}, true},
            Layout{4, {"parallel.pipeline=2", "parallel.zero=1"}, false}}) {
        std::vector<std::string> overrides = layout.overrides;
        overrides.push_back(documents);
        const RunConfig config = config_of(family, overrides, layout.world_size);
        const Outcome many = train(config, layout.world_size, data, 1, &start);
        const Difference d = difference(make_spec(config.model), one, many);
        INFO(fmt::format("{} ranks, {} {}, moment {} of {}, loss {}", layout.world_size, layout.overrides[0], documents,
                         d.first_moment, d.moment_of, d.loss));
        CHECK(d.small());
        if (layout.same_bits) CHECK(first_difference(many.state, one.state) == "");
      }
    }
  }
}

}  // namespace test_best_fit
