// Dropout masks as a step requests them: every mask of a step, by layer, site, head, sample and step, differs from and
// is uncorrelated with every other. tests/ops checks that ops draw the requested mask.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "../parallel/wrappers.h"
#include "catch.h"
#include "fit/choose_step.h"
#include "model_fixture.h"

namespace test_dropout {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr int64_t mask_size = 19 * 19;  // queries times keys; as many of tokens times features

using Mask = std::vector<bool>;

// Word (column % 4) of philox(key, {column / 4, row, sample}), as ops.h defines it.
Mask mask_of(PhiloxKey key, double p, int64_t sample, int64_t columns) {
  Mask mask;
  for (int64_t row = 0; static_cast<int64_t>(mask.size()) < mask_size; ++row) {
    for (int64_t column = 0; column < columns && static_cast<int64_t>(mask.size()) < mask_size; ++column) {
      const auto words = philox(key, {static_cast<uint32_t>(column / 4), static_cast<uint32_t>(row),
                                      static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
      mask.push_back(words[static_cast<size_t>(column % 4)] < drop_threshold(p));
    }
  }
  return mask;
}

// Records the masks of every forward op with dropout, by use; the ops run as usual.
class Masks final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  using ForwardingBackend::run;

  void run(const EmbeddingForward& op) override {
    note("embedding", op.dropout, op.x.cols, op.token_rows.sequence(op.x.rows));
    inner_.run(op);
  }
  void run(const NormForward& op) override {
    if (op.branch.given()) note("branch", op.dropout, op.x.cols, op.token_rows.sequence(op.x.rows));
    inner_.run(op);
  }
  void run(const ResidualAdd& op) override {
    note("branch", op.dropout, op.x.cols, op.token_rows.sequence(op.x.rows));
    inner_.run(op);
  }
  void run(const AttentionForward& op) override {
    for (int64_t head = 0; head < op.num_heads; ++head) {
      Dropout of_head = op.dropout;
      const auto words = philox(of_head.key, {static_cast<uint32_t>(of_head.first_head + head), 0, 0, 0});
      of_head.key = {words[0], words[1]};
      note("head " + std::to_string(head), of_head, op.sequence_length, op.batch);
    }
    inner_.run(op);
  }

  std::map<std::string, Mask> masks;

 private:
  void note(const std::string& what, const Dropout& dropout, int64_t columns, int64_t samples) {
    REQUIRE(dropout.p == 0.5);
    for (int64_t i = 0; i < samples; ++i) {
      const int64_t sample = dropout.sample_ids[i];
      const std::string name = what + ", op " + std::to_string(sites_[what + std::to_string(sample)]++) + ", sample " +
                               std::to_string(sample);
      REQUIRE(masks.emplace(name, mask_of(dropout.key, dropout.p, sample, columns)).second);
    }
  }

  std::map<std::string, int> sites_;
};

// Correlation of two masks. For independent bits of probability 1/2 it is about normal with deviation 1 / sqrt(n).
double correlation(const Mask& a, const Mask& b) {
  int64_t equal = 0;
  for (size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i] ? 1 : 0;
  return 2.0 * static_cast<double>(equal) / static_cast<double>(a.size()) - 1;
}

}  // namespace

TEST_CASE("no two masks of a run are alike") {
  const RunConfig config = small_config(Family::gpt2, {"model.dropout=0.5"});
  const auto inner = make_cpu_backend(1);
  Masks backend(*inner);
  OneRank rank(config);
  TrainingStep step(plan_rank({config, inner->target()}).design, backend, rank.groups);
  step.initialize();
  RandomBatches batches(config);
  for (int i = 0; i < 2; ++i) step.run(1e-3, batches);
  // Two steps of four samples: the embedding's mask, and for each of three layers those of two branches and three
  // heads.
  REQUIRE(backend.masks.size() == 2 * 4 * (1 + 3 * (2 + 3)));
  // Among some 8,000 pairs of 361 bits, one in 500 million is beyond six deviations.
  const double bound = 6 / std::sqrt(static_cast<double>(mask_size));
  for (auto a = backend.masks.begin(); a != backend.masks.end(); ++a) {
    for (auto b = std::next(a); b != backend.masks.end(); ++b) {
      if (std::abs(correlation(a->second, b->second)) < bound) continue;
      FAIL(a->first << " and " << b->first << " have a correlation of " << correlation(a->second, b->second));
    }
  }
}

TEST_CASE("the losses of a run with dropout are what they have always been") {
  const RunConfig config = small_config(Family::gpt2, {"model.dropout=0.5"});
  const auto backend = make_cpu_backend(1);
  OneRank rank(config);
  TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
  step.initialize();
  RandomBatches batches(config);
  const double expected[] = {4.6481184897, 4.5914965868, 4.6324157213};
  for (const double loss : expected) CHECK(step.run(1e-2, batches).loss == Approx(loss).epsilon(1e-5));
}

}  // namespace test_dropout
