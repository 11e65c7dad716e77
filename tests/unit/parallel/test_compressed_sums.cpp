// Sums of compressed gradients: no part of a gradient is lost, and all ranks find the same sum.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "config/node_groups.h"
#include "model_fixture.h"
#include "ops/backend.h"
#include "parallel/compressed_reducer.h"
#include "parallel/gradient_sums.h"
#include "parallel/low_rank_reducer.h"
#include "parallel/parameter_exchange.h"
#include "parallel/sketch_reducer.h"
#include "parallel/sparse_reducer.h"
#include "summing_rank.h"

namespace gptrain::compressed_sums_test {
namespace {

using testing::Family;
using testing::hashed;
using testing::small_config;

constexpr int64_t num_ranks = 3;
constexpr int num_steps = 5, skipped_step = 2;

void expect(bool condition, const std::string& text) {
  if (!condition) throw Error(ExitCode::device, "{}", text);
}

// Numbers without a pattern, whose sizes differ between tensors and elements by orders of magnitude.
float gradient_of(int64_t unit, int64_t element, int64_t rank, int64_t sum) {
  return static_cast<float>(hashed(element, unit, rank, sum)) * std::exp2(static_cast<float>(element / 700 % 9));
}

// `products`: number of products that the gradients consist of; 4: noise as well.
float reference_gradient(int64_t matrix, int64_t element, int64_t cols, int64_t rank, int64_t step,
                         int64_t products = 4) {
  double sum = products < 4 ? 0 : 0.02 * hashed(element, matrix + 100, rank, step);
  for (int64_t k = 0; k < products; ++k) {
    const double size = std::pow(0.2, k) * (1 + 0.3 * hashed(k, 77, rank, step));
    sum += size * hashed(element / cols, matrix * 10 + k, 1, 0) * hashed(element % cols, matrix * 10 + k, 2, 0);
  }
  return static_cast<float>(sum);
}

struct SumOfUnit {
  std::vector<double> applied;    // sums that steps have left
  std::vector<double> gradients;  // sums of all ranks' gradients in the steps that were not skipped
};

class Rank : testing::SummingRank {
 public:
  using SummingRank::SummingRank;

  // Checks the sums of several steps.
  void check_steps() {
    const bool keeps = config_.comm.compression.error;
    ParameterExchange first = make_exchange(), second = make_exchange(true);
    for (int step = 0; step < num_steps; ++step) {
      ParameterExchange& exchange = step % 2 == 0 ? first : second;
      state_.skip = step == skipped_step ? 1 : 0;
      const std::vector<float> before = residuals_;
      for (int64_t unit = 0; unit < store_->num_parameter_units(); ++unit) sum(exchange, unit, step);
      for (int64_t unit = 0; unit < store_->num_parameter_units(); ++unit) exchange.end_step(unit);
      expect(state_.skip == 0 || residuals_ == before, "a skipped step changes the errors");
      expect(!keeps || state_.skip != 0 || residuals_ != before, "a step leaves no errors");
    }
    for (int64_t unit = 0; unit < store_->num_parameter_units(); ++unit) check_sum(unit);
  }

  // Checks sums of the first block's matrices against those that PyTorch found in float64.
  void check_reference(const nlohmann::json& golden) {
    constexpr int64_t unit = 1;
    const std::vector<LowRankMatrix>& matrices = messages_.units[unit].as<UnitFactors>().matrices;
    expect(matrices.size() == golden.at("shapes").size(), "another number of matrices");
    for (size_t m = 0; m < matrices.size(); ++m) {
      expect(golden.at("shapes")[m] == nlohmann::json::array({matrices[m].rows, matrices[m].cols}),
             "a matrix of another shape");
      for (int64_t i = 0; i < config_.comm.compression.rank * matrices[m].cols; ++i)
        residuals_[static_cast<size_t>(matrices[m].factor + i)] =
            static_cast<float>(hashed(i % matrices[m].cols, static_cast<int64_t>(m) + 200, i / matrices[m].cols, 5));
    }
    ParameterExchange exchange = make_exchange();
    std::vector<std::byte> buffer(static_cast<size_t>(messages_.units[unit].buffer_bytes(sharding_.cuts_state())));
    const ParameterExchange::Gradients of{store_->whole(unit).gradients, buffer.data()};
    auto* const gradients = reinterpret_cast<float*>(of.whole);
    for (size_t step = 0; step < golden.at("sums")[0].size(); ++step) {
      for (size_t m = 0; m < matrices.size(); ++m)
        for (int64_t i = 0; i < matrices[m].rows * matrices[m].cols; ++i)
          gradients[matrices[m].first + i] =
              reference_gradient(static_cast<int64_t>(m), i, matrices[m].cols, rank_, static_cast<int64_t>(step));
      exchange.begin_sum(unit, of);
      exchange.go_on_with_sum(unit, of, 1);
      exchange.await_sum(unit, of, 0);
      exchange.end_step(unit);
      for (size_t m = 0; m < matrices.size(); ++m)
        check_near(golden.at("sums")[m][step], matrices[m], gradients + matrices[m].first);
    }
  }

  // Checks that a sum whose rank is not above that of the factors is the plain one, with no errors.
  void check_exact() {
    constexpr int64_t unit = 1;
    const auto products = static_cast<int64_t>(config_.comm.compression.rank);
    ParameterExchange exchange = make_exchange();
    std::vector<std::byte> buffer(static_cast<size_t>(messages_.units[unit].buffer_bytes(sharding_.cuts_state())));
    const ParameterExchange::Gradients of{store_->whole(unit).gradients, buffer.data()};
    auto* const gradients = reinterpret_cast<float*>(of.whole);
    const auto gradient = [&](const LowRankMatrix& matrix, int64_t i, int64_t rank) {
      return reference_gradient(matrix.tensor, i, matrix.cols, rank, 0, products);
    };
    for (const LowRankMatrix& matrix : messages_.units[unit].as<UnitFactors>().matrices)
      for (int64_t i = 0; i < matrix.rows * matrix.cols; ++i) gradients[matrix.first + i] = gradient(matrix, i, rank_);
    exchange.begin_sum(unit, of);
    exchange.go_on_with_sum(unit, of, 1);
    exchange.await_sum(unit, of, 0);
    for (const LowRankMatrix& matrix : messages_.units[unit].as<UnitFactors>().matrices) {
      double off = 0, size = 0;
      for (int64_t i = 0; i < matrix.rows * matrix.cols; ++i) {
        double sum = 0;
        for (int64_t rank = 0; rank < num_ranks; ++rank) sum += static_cast<double>(gradient(matrix, i, rank));
        off += std::pow(static_cast<double>(gradients[matrix.first + i]) - sum, 2);
        size += sum * sum;
      }
      expect(size > 0 && std::sqrt(off / size) < 1e-5, "the sum is off by " + std::to_string(std::sqrt(off / size)));
    }
  }

  // Checks alternating sums of the first block's matrices against the same steps in f64: with X the ranks' gradients
  // and errors, and S the other factor, orthonormalised, X S S^T or S S^T X.
  void check_alternating() {
    constexpr int64_t unit = 1;
    const int64_t r = config_.comm.compression.rank;
    const std::vector<LowRankMatrix>& matrices = messages_.units[unit].as<UnitFactors>().matrices;
    expect(!matrices.empty(), "no matrix is coded");
    std::vector<std::vector<double>> right, left, errors;
    for (const LowRankMatrix& m : matrices) {
      errors.emplace_back(static_cast<size_t>(m.rows * m.cols));  // errors of all ranks together
      std::vector<double>& start = right.emplace_back(static_cast<size_t>(r * m.cols));
      left.emplace_back(static_cast<size_t>(r * m.rows));
      for (int64_t k = 0; k < r; ++k)
        for (int64_t j = 0; j < m.cols; ++j) {
          const auto value = static_cast<float>(hashed(j, m.tensor, k, 5));
          start[static_cast<size_t>(k * m.cols + j)] = static_cast<double>(value);
          residuals_[static_cast<size_t>(m.factor + k * (m.cols + m.rows) + j)] = value;
        }
    }
    ParameterExchange exchanges[] = {make_exchange(), make_exchange(true)};
    std::vector<std::byte> buffer(static_cast<size_t>(messages_.units[unit].buffer_bytes(sharding_.cuts_state())));
    const ParameterExchange::Gradients of{store_->whole(unit).gradients, buffer.data()};
    auto* const gradients = reinterpret_cast<float*>(of.whole);
    for (int64_t step = 0; step < 5; ++step) {
      const auto value = [&](const LowRankMatrix& m, int64_t i, int64_t rank) {
        return reference_gradient(m.tensor, i, m.cols, rank, step);
      };
      for (const LowRankMatrix& m : matrices)
        for (int64_t i = 0; i < m.rows * m.cols; ++i) gradients[m.first + i] = value(m, i, rank_);
      ParameterExchange& exchange = exchanges[step % 2];
      exchange.begin_sum(unit, of);
      exchange.await_sum(unit, of, 0);
      exchange.end_step(unit);
      for (size_t number = 0; number < matrices.size(); ++number) {
        const LowRankMatrix& m = matrices[number];
        std::vector<double>& x = errors[number];
        for (int64_t i = 0; i < m.rows * m.cols; ++i)
          for (int64_t rank = 0; rank < num_ranks; ++rank)
            x[static_cast<size_t>(i)] += static_cast<double>(value(m, i, rank));
        const std::vector<double> sum = project(x, m.rows, m.cols, step % 2 == 0, right[number], left[number]);
        double off = 0, size = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          off += std::pow(static_cast<double>(gradients[static_cast<size_t>(m.first) + i]) - sum[i], 2);
          size += sum[i] * sum[i];
          x[i] -= sum[i];
        }
        expect(size > 0 && std::sqrt(off / size) < 1e-5, "the sum is off by " + std::to_string(std::sqrt(off / size)));
      }
    }
  }

  // Checks sums of sketches of gradients of which one element in 200 is not 0.
  void check_few() {
    constexpr int64_t unit = 1;
    ParameterExchange exchange = make_exchange();
    std::vector<std::byte> buffer(static_cast<size_t>(messages_.units[unit].buffer_bytes(sharding_.cuts_state())));
    const ParameterExchange::Gradients of{store_->whole(unit).gradients, buffer.data()};
    auto* const gradients = reinterpret_cast<float*>(of.whole);
    const auto gradient = [](int64_t i, int64_t rank) {
      return i % 200 == 3 ? static_cast<float>(1 + (i / 200 + rank) % 5) : 0.0F;
    };
    for (int64_t i = 0; i < range(unit).elements; ++i) gradients[i] = gradient(i, rank_);
    exchange.begin_sum(unit, of);
    exchange.go_on_with_sum(unit, of, 1);
    exchange.await_sum(unit, of, 0);
    exchange.end_step(unit);
    expect(!messages_of(unit).as<UnitSketches>().matrices.empty(), "nothing is sketched");
    for (int64_t i = 0; i < range(unit).elements; ++i) {
      float sum = 0;
      for (int64_t rank = 0; rank < num_ranks; ++rank) sum += gradient(i, rank);
      expect(gradients[i] == sum, "element " + std::to_string(i) + " is " + std::to_string(gradients[i]));
    }
    expect(std::all_of(residuals_.begin(), residuals_.end(), [](float error) { return error == 0; }),
           "errors are left");
  }

 private:
  // `right`: sums right factors if factors alternate.
  ParameterExchange make_exchange(bool right = false) {
    compressions_.push_back(std::make_unique<GradientCompression>(compression()));
    GradientCompression& of = *compressions_.back();
    if (right && of.factors == FactorSums::left) of.factors = FactorSums::right;
    return {*store_, groups_, *backend_, nullptr, [this, &of](const ReductionContext& context, ReplicaGroup) {
              return gradient_sum(messages_.kind).make_reducer(context, of);
            }};
  }

  // Returns the projection of x onto the rows of `right`, or the columns of `left`, made orthonormal, and replaces the
  // other one by its factor.
  static std::vector<double> project(const std::vector<double>& x, int64_t rows, int64_t cols, bool on_right,
                                     std::vector<double>& right, std::vector<double>& left) {
    std::vector<double>& fixed = on_right ? right : left;
    std::vector<double>& found = on_right ? left : right;
    const int64_t length = on_right ? cols : rows, others = on_right ? rows : cols;
    const auto r = std::ssize(fixed) / length;
    const auto product = [&](int64_t a, int64_t b) {
      double sum = 0;
      for (int64_t i = 0; i < length; ++i)
        sum += fixed[static_cast<size_t>(a * length + i)] * fixed[static_cast<size_t>(b * length + i)];
      return sum;
    };
    for (int64_t k = 0; k < r; ++k) {
      for (int64_t before = 0; before < k; ++before) {
        const double part = product(k, before);
        for (int64_t i = 0; i < length; ++i)
          fixed[static_cast<size_t>(k * length + i)] -= part * fixed[static_cast<size_t>(before * length + i)];
      }
      const double norm = std::sqrt(product(k, k));
      for (int64_t i = 0; i < length; ++i) fixed[static_cast<size_t>(k * length + i)] /= norm;
    }
    std::fill(found.begin(), found.end(), 0.0);
    std::vector<double> sum(x.size());
    for (const bool is_second : {false, true})
      for (int64_t k = 0; k < r; ++k)
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < cols; ++j) {
            const auto at = static_cast<size_t>(i * cols + j);
            const double factor = fixed[static_cast<size_t>(k * length + (on_right ? j : i))];
            double& other = found[static_cast<size_t>(k * others + (on_right ? i : j))];
            if (is_second) {
              sum[at] += factor * other;
            } else {
              other += factor * x[at];
            }
          }
    return sum;
  }

  // Checks a sum within 1e-5 of its norm.
  static void check_near(const nlohmann::json& golden, const LowRankMatrix& matrix, const float* sum) {
    double squares = 0;
    for (int64_t i = 0; i < matrix.rows * matrix.cols; ++i)
      squares += static_cast<double>(sum[i]) * static_cast<double>(sum[i]);
    const auto norm = golden.at("norm").get<double>();
    expect(std::abs(std::sqrt(squares) - norm) < 1e-5 * norm,
           "the norm is " + std::to_string(std::sqrt(squares)) + ", not " + std::to_string(norm));
    const int64_t at[] = {0, matrix.rows / 2 * matrix.cols + matrix.cols / 3, matrix.rows * matrix.cols - 1};
    for (size_t i = 0; i < std::size(at); ++i) {
      const auto element = golden.at("elements")[i].get<double>();
      expect(std::abs(static_cast<double>(sum[at[i]]) - element) < 1e-5 * norm,
             "another element than " + std::to_string(element));
    }
  }

  // Sums a unit's gradients of two micro-batches, with ZeRO 2 each of them.
  void sum(ParameterExchange& exchange, int64_t unit, int step) {
    const int64_t sums = sharding_.cuts_gradients() ? 2 : 1;
    const UnitMessages& messages = messages_of(unit);
    SumOfUnit& all = sums_.try_emplace(unit).first->second;
    all.applied.resize(static_cast<size_t>(range(unit).elements));
    all.gradients.resize(all.applied.size());
    std::vector<float> bucket(all.applied.size());
    std::vector<std::byte> buffer(static_cast<size_t>(messages.buffer_bytes(sharding_.cuts_state())));
    for (int64_t micro_batch = 0; micro_batch < sums; ++micro_batch) {
      const int64_t number = step * sums + micro_batch;
      std::byte* const whole = store_->whole(unit, nullptr, reinterpret_cast<std::byte*>(bucket.data())).gradients;
      for (int64_t i = 0; i < range(unit).elements; ++i) {
        reinterpret_cast<float*>(whole)[i] = gradient_of(unit, i, rank_, number);
        for (int64_t rank = 0; rank < groups_.num_data_ranks() && step != skipped_step; ++rank)
          all.gradients[static_cast<size_t>(i)] += static_cast<double>(gradient_of(unit, i, rank, number));
      }
      const ParameterExchange::Gradients of{whole, buffer.data()};
      exchange.begin_sum(unit, of);
      const int phases = messages.is_coded() ? messages_.phases(sharding_.cuts_state()) : 1;
      for (int phase = 1; phase < phases; ++phase) exchange.go_on_with_sum(unit, of, phase);
      exchange.await_sum(unit, of, micro_batch);
    }
    if (step == skipped_step) return;
    const UpdateRange updated = store_->update_range(unit);
    for (int64_t i = 0; i < updated.elements; ++i)
      all.applied[static_cast<size_t>(updated.first + i)] +=
          static_cast<double>(reinterpret_cast<const float*>(updated.gradients)[i]);
  }

  // Adds up the ranks' errors. With them, the sums that were applied are the sums of the gradients.
  void check_sum(int64_t unit) {
    const SumOfUnit& all = sums_.at(unit);
    std::vector<double> errors(all.applied.size());
    const auto take_errors = [&](int64_t first, int64_t count, int64_t residual) {
      for (int64_t i = 0; i < count; ++i)
        errors[static_cast<size_t>(first + i)] = static_cast<double>(residuals_[static_cast<size_t>(residual + i)]);
    };
    const auto& coded = messages_of(unit).as<UnitPieces>();
    for (int64_t i = 0; i < coded.num_of_share; ++i)
      for (const MessageRun& run : coded.pieces[static_cast<size_t>(coded.first_of_share + i)].runs)
        if (run.is_coded()) take_errors(run.first, run.count, run.residual);
    for (const LowRankMatrix& matrix : messages_of(unit).as<UnitFactors>().matrices)
      take_errors(matrix.first, matrix.rows * matrix.cols, matrix.residual);
    for (const SparseMatrix& matrix : messages_of(unit).as<UnitSparse>().matrices)
      take_errors(matrix.first, matrix.count, matrix.residual);
    for (const SketchedMatrix& matrix : messages_of(unit).as<UnitSketches>().matrices)
      take_errors(matrix.first, matrix.count, matrix.residual);
    Lane& lane = groups_.lane(LaneKind::gradients);
    Communicator* const data = groups_.group(LaneKind::gradients, GroupKind::data);
    lane.wait(lane.all_reduce(data, errors.data(), std::ssize(errors), DType::f64));
    const UpdateRange updated = store_->update_range(unit);
    double off = 0, size = 0, without = 0;
    for (int64_t i = updated.first; i < updated.first + updated.elements; ++i) {
      const auto at = static_cast<size_t>(i);
      off += std::pow(all.applied[at] + errors[at] - all.gradients[at], 2);
      without += std::pow(all.applied[at] - all.gradients[at], 2);
      size += std::pow(all.gradients[at], 2);
    }
    const bool is_coded = messages_of(unit).is_coded();
    expect(std::sqrt(off / size) < (config_.comm.compression.error || !is_coded ? 1e-6 : 0.02),
           "what was applied and the errors are not the gradients of unit " + std::to_string(unit) + ": " +
               std::to_string(std::sqrt(off / size)));
    expect(!is_coded || without > 0, "nothing is coded");
    // With ZeRO 0 every rank has the same bits.
    if (sharding_.cuts_state()) return;
    std::vector<double> mean = all.applied;
    lane.wait(lane.all_reduce(data, mean.data(), std::ssize(mean), DType::f64, ReduceOp::max));
    expect(mean == all.applied, "ranks have other sums");
  }

  std::vector<std::unique_ptr<GradientCompression>> compressions_;
  std::map<int64_t, SumOfUnit> sums_;
};

}  // namespace

TEST_CASE("compressed sums and the errors that ranks keep are together the sums of all gradients") {
  struct Case {
    std::string zero, kind, error;
  };
  const std::vector<Case> cases = {{"0", "int8", "true"},  {"0", "int8", "false"}, {"1", "int8", "true"},
                                   {"1", "int8", "false"}, {"2", "int8", "true"},  {"2", "int8", "false"},
                                   {"0", "int4", "true"},  {"2", "int4", "true"}};
  for (const auto& [zero, kind, error] : cases) {
    INFO("ZeRO " << zero << ", " << kind << ", errors kept: " << error);
    const RunConfig config =
        small_config(Family::gpt2,
                     {"batch.global=6", "batch.micro=1", "parallel.zero=" + zero,
                      R"(comm.compression={"kind": ")" + kind + R"(", "min_elements": 1000, "error": )" + error + "}"},
                     num_ranks);
    CHECK_NOTHROW(run_local_ranks(num_ranks, [&](World& world) { Rank(world, config).check_steps(); }));
  }
}

// Sums within nodes are exact but for f32, and each rank has errors of its share only.
TEST_CASE(
    "sums that are compressed between nodes and the errors of the ranks' shares are together those of all gradients") {
  struct Case {
    int ranks;
    std::string zero, of_node, kind, error;
  };
  const std::vector<Case> cases = {{4, "0", "2", "int8", "true"}, {6, "0", "2", "int8", "true"},
                                   {6, "0", "3", "int4", "true"}, {4, "0", "2", "int8", "false"},
                                   {4, "1", "2", "int8", "true"}, {6, "1", "3", "int4", "true"},
                                   {6, "2", "2", "int8", "true"}, {4, "3", "2", "int8", "false"}};
  for (const auto& [ranks, zero, of_node, kind, error] : cases) {
    INFO(ranks << " ranks, ZeRO " << zero << ", " << of_node << " ranks of a node, " << kind << ", " << error);
    RunConfig config =
        small_config(Family::gpt2,
                     {"batch.global=12", "batch.micro=1", "parallel.zero=" + zero, "comm.ranks_per_node=" + of_node,
                      R"(comm.compression={"between": "nodes", "min_elements": 1000, "kind": ")" + kind +
                          R"(", "error": )" + error + "}"},
                     ranks);
    choose_hierarchy(config, ranks, 0, [](const NodeSplit&) { return false; });
    CHECK(config.parallel.node_replicas.dense == std::stoi(of_node));
    CHECK_NOTHROW(run_local_ranks(ranks, [&](World& world) { Rank(world, config).check_steps(); }));
  }
}

TEST_CASE("sums of a low rank and the errors that ranks keep are together the sums of all gradients") {
  for (const std::string zero : {"0", "1"}) {
    for (const std::string rank : {"1", "3", R"(2, "alternate": true)"}) {
      INFO("ZeRO " << zero << ", rank " << rank);
      const RunConfig config =
          small_config(Family::gpt2,
                       {"batch.global=6", "batch.micro=1", "parallel.zero=" + zero,
                        R"(comm.compression={"kind": "powersgd", "min_elements": 500, "rank": )" + rank + "}"},
                       num_ranks);
      CHECK_NOTHROW(run_local_ranks(num_ranks, [&](World& world) { Rank(world, config).check_steps(); }));
    }
  }
}

TEST_CASE("sums of the largest elements and the errors that ranks keep are together the sums of all gradients") {
  for (const std::string zero : {"0", "1"}) {
    for (const std::string kind : {"topk", "sketch"}) {
      INFO("ZeRO " << zero << ", " << kind);
      const RunConfig config =
          small_config(Family::gpt2,
                       {"batch.global=6", "batch.micro=1", "parallel.zero=" + zero,
                        R"(comm.compression={"kind": ")" + kind + R"(", "min_elements": 500, "share": 0.03})"},
                       num_ranks);
      CHECK_NOTHROW(run_local_ranks(num_ranks, [&](World& world) { Rank(world, config).check_steps(); }));
    }
  }
}

TEST_CASE("sketches find the few elements that ranks have gradients of, and sum them as plain sums do") {
  const RunConfig config =
      small_config(Family::gpt2,
                   {"batch.global=6", "batch.micro=1", "parallel.zero=0",
                    R"(comm.compression={"kind": "sketch", "min_elements": 500, "share": 0.04, "rank": 7})"},
                   num_ranks);
  CHECK_NOTHROW(run_local_ranks(num_ranks, [&](World& world) { Rank(world, config).check_few(); }));
}

TEST_CASE("sums of a low rank are those of PyTorch's powerSGD_hook") {
  std::ifstream file(GPTRAIN_SOURCE_ROOT "/tests/golden/powersgd.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const auto ranks = golden.at("ranks").get<int>();
  const RunConfig config = small_config(Family::gpt2,
                                        {"batch.global=4", "batch.micro=1", "parallel.zero=0",
                                         R"(comm.compression={"kind": "powersgd", "min_elements": 500, "rank": 2})"},
                                        ranks);
  CHECK_NOTHROW(run_local_ranks(ranks, [&](World& world) { Rank(world, config).check_reference(golden); }));
}

TEST_CASE("sums of no higher rank than the factors are exact") {
  const RunConfig config = small_config(Family::gpt2,
                                        {"batch.global=6", "batch.micro=1", "parallel.zero=0",
                                         R"(comm.compression={"kind": "powersgd", "min_elements": 500, "rank": 3})"},
                                        num_ranks);
  CHECK_NOTHROW(run_local_ranks(num_ranks, [&](World& world) { Rank(world, config).check_exact(); }));
}

TEST_CASE("alternating factors give the projections that float64 gives") {
  const RunConfig config =
      small_config(Family::gpt2,
                   {"batch.global=6", "batch.micro=1", "parallel.zero=0",
                    R"(comm.compression={"kind": "powersgd", "min_elements": 500, "rank": 2, "alternate": true})"},
                   num_ranks);
  CHECK_NOTHROW(run_local_ranks(num_ranks, [&](World& world) { Rank(world, config).check_alternating(); }));
}

TEST_CASE("messages have each element of a piece once, coded or in f32") {
  for (const auto& [tensor_ranks, bits] : {std::pair<int64_t, int64_t>{1, 8}, {2, 8}, {2, 4}}) {
    const RunConfig config =
        small_config(Family::llama,
                     {"batch.global=6", "batch.micro=1",
                      R"(comm.compression={"kind": "int)" + std::to_string(bits) + R"(", "min_elements": 1000})"},
                     3);
    const ModelSpec spec = make_spec(config.model);
    const std::vector<TensorShard> shards = shard_tensors(spec, {tensor_ranks, 0});
    const ParameterLayout layout = make_layout(spec, shards, {3, 1});
    const GradientMessages messages =
        make_gradient_messages(config.comm.compression, spec, shards, layout, tensor_ranks);
    int64_t coded = 0, expected = 0;
    for (size_t i = 0; i < spec.tensors.size(); ++i) {
      // A table of positions, which tensor ranks have in common, is not coded.
      const bool is_coded = spec.tensors[i].shape.size() == 2 && spec.tensors[i].count() >= 1000 &&
                            (tensor_ranks == 1 || spec.tensors[i].split != Split::none);
      CHECK(codes_gradients(config.comm.compression, spec.tensors[i], tensor_ranks) == is_coded);
      if (is_coded) expected += layout.segments[i].count;
    }
    for (size_t unit = 0; unit < messages.units.size(); ++unit) {
      int64_t next = 0;
      for (const PieceMessage& piece : messages.units[unit].as<UnitPieces>().pieces) {
        int64_t bytes = 0;
        for (const MessageRun& run : piece.runs) {
          CHECK(run.first == next);
          next += run.count;
          coded += run.is_coded() ? run.count : 0;
          const int64_t values = run.is_coded() ? (run.count * bits + 7) / 8 : 4 * run.count;
          bytes += run.is_coded() ? values + 4 * ((run.count + 127) / 128) : values;
          CHECK(run.values + values <= piece.bytes);
        }
        CHECK(piece.bytes == bytes);
        CHECK(piece.bytes <= messages.units[unit].as<UnitPieces>().stride);
      }
      CHECK((next == layout.units[unit].elements || messages.units[unit].as<UnitPieces>().pieces.empty()));
    }
    CHECK(coded == expected);
  }
}

}  // namespace gptrain::compressed_sums_test
