// 1-bit Adam over ranks against its formulas (arXiv 2102.02888, algorithm 1) in float64.
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "model_fixture.h"
#include "ops/block_codes.h"
#include "optim/types.h"
#include "parallel/compressed_reducer.h"
#include "parallel/parameter_exchange.h"
#include "summing_rank.h"

namespace gptrain::onebit_adam_test {
namespace {

constexpr int64_t num_ranks = 3;
constexpr int num_steps = 20, freeze_step = 5, skipped_step = 12;
constexpr double rate = 1e-2;

// The gradient of one rank, from -1 to 1 times a size of its own for each element.
float gradient_of(int64_t unit, int64_t element, int64_t rank, int64_t step) {
  return static_cast<float>(testing::hashed(element, unit, rank, step)) * (0.1F + static_cast<float>(element % 7));
}

struct Reference {
  explicit Reference(size_t elements) : weights(elements), moment(elements), variance(elements), server(elements) {
    for (std::vector<double>& of_rank : worker) of_rank.resize(elements);
  }
  std::vector<double> weights, moment, variance, server;
  std::array<std::vector<double>, num_ranks> worker;
};

struct Block {
  int64_t first, count;
  bool is_near_tie = false;  // an element was so close to 0 that rounding may turn its sign
};

// Codes values and leaves the errors: values - codes.
void code(std::vector<double>& values, std::vector<double>& errors, Block& block) {
  double squares = 0;
  for (int64_t i = block.first; i < block.first + block.count; ++i) squares += values[i] * values[i];
  const double scale = std::sqrt(squares / static_cast<double>(block.count));
  for (int64_t i = block.first; i < block.first + block.count; ++i) {
    const double coded = values[i] >= 0 ? scale : -scale;
    block.is_near_tie = block.is_near_tie || std::abs(values[i]) < 2e-6 * scale;
    errors[i] = values[i] - coded;
    values[i] = coded;
  }
}

class Rank : testing::SummingRank {
 public:
  using SummingRank::SummingRank;

  // Trains and compares the weights of each unit with the reference.
  void check() {
    state_.learning_rate = static_cast<float>(rate);
    state_.gradient_scale = 1;
    GradientCompression compression = this->compression();
    compression.momenta = momentum_sums(config_.optimizer);
    compression.server_errors = server_errors_column;
    const std::unique_ptr<Optimizer> optimizer = make_optimizer();
    ParameterExchange plain(*store_, groups_, *backend_, nullptr);
    ParameterExchange coded(*store_, groups_, *backend_, nullptr, [&](const ReductionContext& context, ReplicaGroup) {
      return make_compressed_reducer(context, compression);
    });
    for (int step = 0; step < num_steps; ++step) {
      state_.skip = step == skipped_step ? 1 : 0;
      if (state_.skip == 0) ++state_.updates;
      optimizer->expect_sums(step >= freeze_step ? SumsOfStep::compressed : SumsOfStep::plain, messages_);
      for (int64_t unit = 0; unit < store_->num_parameter_units(); ++unit)
        take_step(step < freeze_step ? plain : coded, *optimizer, unit, step);
    }
    for (int64_t unit = 0; unit < store_->num_parameter_units(); ++unit) compare(unit);
  }

 private:
  // Calls body(element of the unit, weight decay) for each element of the unit's tensors.
  template <typename Body>
  void for_each_element(int64_t unit, const Body& body) const {
    for (int64_t i = range(unit).first_tensor; i < range(unit).first_tensor + range(unit).num_tensors; ++i) {
      const Segment& segment = layout_.segments[static_cast<size_t>(i)];
      const double decay = spec_.tensors[static_cast<size_t>(i)].decay ? config_.optimizer.weight_decay : 0;
      for (const ShardBox& box : shards_[static_cast<size_t>(i)].boxes)
        for (int64_t k = 0; k < box.count(); ++k)
          body(segment.offset - range(unit).offset + box.local_offset + k, decay);
    }
  }

  // Some elements have no gradients before the variances freeze.
  static bool is_late(int64_t element, int step) { return element % 11 == 3 && step < freeze_step; }

  void take_step(ParameterExchange& exchange, Optimizer& optimizer, int64_t unit, int step) {
    std::vector<std::byte> buffer(static_cast<size_t>(messages_of(unit).buffer_bytes(false)));
    const ParameterExchange::Gradients of{store_->whole(unit).gradients, buffer.data()};
    for_each_element(unit, [&](int64_t at, double) {
      reinterpret_cast<float*>(of.whole)[at] = is_late(at, step) ? 0 : gradient_of(unit, at, rank_, step);
    });
    exchange.begin_sum(unit, of);
    if (step >= freeze_step && messages_of(unit).is_coded()) exchange.go_on_with_sum(unit, of, 1);
    exchange.await_sum(unit, of, 0);
    optimizer.update(unit);
    exchange.end_step(unit);
  }

  std::vector<Block> blocks(int64_t unit) const {
    std::vector<Block> found;
    for (const PieceMessage& piece : messages_of(unit).as<UnitPieces>().pieces)
      for (const MessageRun& run : piece.runs)
        for (int64_t first = 0; run.is_coded() && first < run.count; first += code_block)
          found.push_back({run.first + first, std::min(code_block, run.count - first)});
    return found;
  }

  void step_reference(Reference& of, int64_t unit, int step, std::vector<Block>& blocks) const {
    const auto& [lr, beta1, beta2, eps] =
        std::array{rate, config_.optimizer.beta1, config_.optimizer.beta2, config_.optimizer.eps};
    const int updates = step + 1 - (step > skipped_step ? 1 : 0);
    const bool frozen = step >= freeze_step && !blocks.empty();
    std::vector<double> sum(of.weights.size());
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      std::vector<double> share(of.weights.size());
      for_each_element(unit, [&](int64_t at, double) {
        const double gradient = is_late(at, step) ? 0 : static_cast<double>(gradient_of(unit, at, rank, step));
        share[at] = frozen ? beta1 * of.moment[at] / num_ranks + (1 - beta1) * gradient : gradient;
      });
      for (Block& block : blocks) {
        if (!frozen) continue;
        for (int64_t i = block.first; i < block.first + block.count; ++i) share[i] += of.worker[rank][i];
        code(share, of.worker[rank], block);
      }
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += share[i];
    }
    for (Block& block : blocks) {
      if (!frozen) continue;
      for (int64_t i = block.first; i < block.first + block.count; ++i) sum[i] += of.server[i];
      code(sum, of.server, block);
    }
    const double of_frozen = 1 - std::pow(beta2, freeze_step);
    for_each_element(unit, [&](int64_t at, double decay) {
      double& m = of.moment[at];
      double& v = of.variance[at];
      m = frozen ? (v == 0 ? 0 : sum[at]) : beta1 * m + (1 - beta1) * sum[at];
      if (!frozen) v = beta2 * v + (1 - beta2) * sum[at] * sum[at];
      const double root = std::sqrt(v / (frozen ? of_frozen : 1 - std::pow(beta2, updates)));
      of.weights[at] -= lr * (m / (1 - std::pow(beta1, updates)) / (root + eps) + decay * of.weights[at]);
    });
  }

  void compare(int64_t unit) const {
    Reference reference(static_cast<size_t>(range(unit).elements));
    std::vector<Block> of_unit = blocks(unit);
    for (int step = 0; step < num_steps; ++step) {
      if (step != skipped_step) step_reference(reference, unit, step, of_unit);
    }
    std::vector<bool> left_out(reference.weights.size());
    int64_t ties = 0;
    for (const Block& block : of_unit) {
      ties += block.is_near_tie ? 1 : 0;
      for (int64_t i = block.first; i < block.first + block.count; ++i) left_out[i] = block.is_near_tie;
    }
    if (ties * 20 > std::ssize(of_unit))
      throw Error(ExitCode::device, "{} of {} blocks left out", ties, of_unit.size());
    const float* const weights = store_->update_range(unit).master;
    double off = 0, size = 0;
    for_each_element(unit, [&](int64_t at, double) {
      if (left_out[at]) return;
      off += std::pow(static_cast<double>(weights[at]) - reference.weights[at], 2);
      size += std::pow(reference.weights[at], 2);
    });
    if (!(std::sqrt(off / size) < 1e-5))
      throw Error(ExitCode::device, "unit {} is {} off", unit, std::sqrt(off / size));
  }
};

}  // namespace

TEST_CASE("1-bit Adam takes the steps of its formulas in float64") {
  const RunConfig config = testing::small_config(testing::Family::gpt2,
                                                 {"batch.global=6", "batch.micro=1", "optimizer.type=onebit-adam",
                                                  "optimizer.freeze_step=" + std::to_string(freeze_step)},
                                                 num_ranks);
  CHECK(config.optimizer.clip_norm == 0);
  CHECK(config.optimizer.beta2 == 0.999);
  CHECK_NOTHROW(run_local_ranks(num_ranks, [&](World& world) { Rank(world, config).check(); }));
}

}  // namespace gptrain::onebit_adam_test
