// Muon's orthogonalisation and its steps against float64.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <string>
#include <vector>

#include "catch.h"
#include "differences.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "optim/orthogonalise.h"

namespace test_muon {

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::first_difference;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

using Values = std::vector<double>;

// A [rows, cols] matrix, row by row.
struct Wide {
  int64_t rows, cols;
  Values values;

  double operator()(int64_t row, int64_t col) const { return values[static_cast<size_t>(row * cols + col)]; }
};

Wide transposed(const Wide& a) {
  Wide result{a.cols, a.rows, {}};
  for (int64_t col = 0; col < a.cols; ++col) {
    for (int64_t row = 0; row < a.rows; ++row) result.values.push_back(a(row, col));
  }
  return result;
}

Wide product(const Wide& a, const Wide& b) {
  Wide result{a.rows, b.cols, Values(static_cast<size_t>(a.rows * b.cols))};
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t col = 0; col < b.cols; ++col) {
      double sum = 0;
      for (int64_t k = 0; k < a.cols; ++k) sum += a(row, k) * b(k, col);
      result.values[static_cast<size_t>(row * b.cols + col)] = sum;
    }
  }
  return result;
}

double norm(const Values& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

// The reference implementation's formula; a matrix with more rows than columns is transposed first.
Wide orthogonalised(const Wide& matrix) {
  if (matrix.rows > matrix.cols) return transposed(orthogonalised(transposed(matrix)));
  Wide x = matrix;
  const double length = std::max(norm(x.values), 1e-7);
  for (double& value : x.values) value /= length;
  for (int step = 0; step < 5; ++step) {
    const Wide a = product(x, transposed(x)), square = product(a, a);
    Wide b = a;
    for (size_t i = 0; i < b.values.size(); ++i) b.values[i] = -4.7750 * a.values[i] + 2.0315 * square.values[i];
    const Wide more = product(b, x);
    for (size_t i = 0; i < x.values.size(); ++i) x.values[i] = 3.4445 * x.values[i] + more.values[i];
  }
  return x;
}

double distance(const Values& a, const Values& b) {
  Values difference;
  for (size_t i = 0; i < a.size(); ++i) difference.push_back(a[i] - b[i]);
  return norm(difference) / norm(b);
}

// Orthogonalises the matrix with the ops.
Values by_ops(const Wide& matrix, DType products, double scale) {
  const auto backend = make_cpu_backend(2);
  const int64_t elements = matrix.rows * matrix.cols;
  const int64_t square = std::min(matrix.rows, matrix.cols) * std::min(matrix.rows, matrix.cols);
  const auto scratch = backend->allocate(int64_t{64} << 20);
  backend->set_scratch(scratch->data(), scratch->bytes());
  const auto values = backend->allocate(4 * elements), x = backend->allocate(4 * elements);
  const auto y = backend->allocate(4 * elements), a = backend->allocate(4 * square), b = backend->allocate(4 * square);
  const auto norm = backend->allocate(8), segment = backend->allocate(sizeof(SquaredNorm::Segment));
  const SquaredNorm::Segment all{0, elements, 0};
  backend->upload(segment->data(), &all, sizeof all);
  std::vector<float> narrow(matrix.values.begin(), matrix.values.end());
  backend->upload(values->data(), narrow.data(), 4 * elements);
  orthogonalise(Matrix(values->data(), DType::f32, matrix.rows, matrix.cols), scale,
                reinterpret_cast<const SquaredNorm::Segment*>(segment->data()), reinterpret_cast<double*>(norm->data()),
                {.products = products, .x = x->data(), .y = y->data(), .a = a->data(), .b = b->data()}, *backend);
  backend->download(narrow.data(), values->data(), 4 * elements);
  return {narrow.begin(), narrow.end()};
}

Wide noise(int64_t rows, int64_t cols, double scale) {
  Wide matrix{rows, cols, {}};
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto words = philox({77, 88}, {static_cast<uint32_t>(i), static_cast<uint32_t>(rows), 0, 0});
    double sum = -2;
    for (const uint32_t word : words) sum += static_cast<double>(word) / 4294967296.0;
    matrix.values.push_back(scale * sum);
  }
  return matrix;
}

struct State {
  std::map<std::string, Values> weights, moments;
};

State state_of(const TrainingStep& step) {
  State state;
  for (const StateSlice& piece : step.state()) {
    const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
    const float* const moment = testing::column(piece, 0);
    state.weights[tensor.name].assign(piece.weight, piece.weight + piece.count());
    state.moments[tensor.name].assign(moment, moment + piece.count());
  }
  return state;
}

// Returns the new weights of a block's tensor, section by section, from the gradient in the moments.
Values stepped(const TensorSpec& tensor, const OptimizerConfig& optimizer, double rate, const Values& weights,
               const Values& before, const Values& after) {
  Values result = weights;
  std::vector<Section> sections = tensor.sections;
  if (sections.empty()) sections = {{tensor.shape[0], 1}};
  size_t first = 0;
  for (const Section& section : sections) {
    Wide direction{section.rows, tensor.shape[1], {}};
    const size_t end = first + static_cast<size_t>(section.rows * tensor.shape[1]);
    for (size_t i = first; i < end; ++i) {
      const double of_gradient = after[i] - optimizer.momentum * before[i];  // (1 - momentum) times the gradient
      direction.values.push_back(optimizer.nesterov ? optimizer.momentum * after[i] + of_gradient : after[i]);
    }
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(section.rows, tensor.shape[1])));
    const Wide orthogonal = orthogonalised(direction);
    for (size_t i = first; i < end; ++i)
      result[i] -= rate * (scale * orthogonal.values[i - first] + optimizer.weight_decay * weights[i]);
    first = end;
  }
  return result;
}

}  // namespace

TEST_CASE("a matrix is orthogonalised as in float64, whatever its sides") {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 7}, {9, 1}, {5, 5}, {17, 40}, {61, 23}, {48, 31}}) {
    INFO(rows << " x " << cols);
    for (const double size : {1e-3, 50.0}) {
      const Wide matrix = noise(rows, cols, size);
      Values expected = orthogonalised(matrix).values;
      for (double& value : expected) value *= 3;
      CHECK(distance(by_ops(matrix, DType::f32, 3), expected) < 2e-5);
      CHECK(distance(by_ops(matrix, DType::bf16, 3), expected) < 0.1);
    }
  }
}

// Singular values that are not near zero move into [0.68, 1.14] (Jordan et al., 2024); a diagonal matrix shows them. A
// zero matrix stays zero.
TEST_CASE("singular values come near to one, and nothing comes of zeros") {
  Wide diagonal{6, 9, Values(54)};
  for (int64_t i = 0; i < 6; ++i) diagonal.values[static_cast<size_t>(i * 9 + i)] = 1.0 / static_cast<double>(i + 1);
  for (const DType products : {DType::f32, DType::bf16}) {
    const Values result = by_ops(diagonal, products, 1);
    for (size_t i = 0; i < result.size(); ++i) {
      if (i % 9 == i / 9) {
        CHECK(result[i] > 0.67);
        CHECK(result[i] < 1.15);
      } else {
        CHECK(result[i] == 0);
      }
    }
    CHECK(norm(by_ops({4, 3, Values(12)}, products, 1)) == 0);
  }
}

TEST_CASE("Muon's steps are those of float64, matrix by matrix, and AdamW's elsewhere") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const char* nesterov : {"optimizer.nesterov=true", "optimizer.nesterov=false"}) {
      const RunConfig config = small_config(
          family, {"optimizer.type=muon", "optimizer.momentum=0.8", "optimizer.weight_decay=0.3", nesterov});
      const RunConfig adamw = small_config(family, {"optimizer.weight_decay=0.3"});
      const auto backend = make_cpu_backend(2);
      testing::OneRank rank(config), other_rank(adamw);
      TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
      TrainingStep with_adamw(plan_rank({adamw, backend->target()}).design, *backend, other_rank.groups);
      step.initialize();
      with_adamw.initialize();
      for (const StateSlice& piece : step.state()) {
        const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
        CHECK((testing::column(piece, 1) == nullptr) == tensor.of_block_matrix);
      }
      RandomBatches batches(config), other_batches(config);
      constexpr double rate = 1e-2;
      for (int i = 0; i < 4; ++i) {
        const State before = state_of(step);
        step.run(rate, batches);
        const State after = state_of(step);
        if (i == 0) with_adamw.run(rate, other_batches);
        for (const TensorSpec& tensor : step.spec().tensors) {
          INFO(tensor.name << " in step " << i + 1 << " " << nesterov);
          const Values &weights = before.weights.at(tensor.name), &now = after.weights.at(tensor.name);
          if (!tensor.of_block_matrix) continue;
          const Values expected = stepped(tensor, config.optimizer, rate, weights, before.moments.at(tensor.name),
                                          after.moments.at(tensor.name));
          Values moved, to_move;
          for (size_t at = 0; at < now.size(); ++at) {
            moved.push_back(now[at] - weights[at]);
            to_move.push_back(expected[at] - weights[at]);
          }
          CHECK(distance(moved, to_move) < 2e-4);
        }
        if (i > 0) continue;
        for (const StateSlice& piece : with_adamw.state()) {
          const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
          INFO(tensor.name);
          const Values weights(piece.weight, piece.weight + piece.count());
          CHECK((weights == after.weights.at(tensor.name)) == !tensor.of_block_matrix);
        }
      }
    }
  }
}

TEST_CASE("the first momentum is its share of the clipped gradient, and what is multiplied in bf16 is a little off") {
  const auto run = [](const std::vector<std::string>& overrides) {
    const RunConfig config = small_config(Family::gpt2, overrides);
    const auto backend = make_cpu_backend(2);
    testing::OneRank rank(config);
    TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
    step.initialize();
    RandomBatches batches(config);
    step.run(1e-2, batches);
    return state_of(step);
  };
  const std::string name = "blocks.1.ffn.in.weight";
  const State adamw = run({"optimizer.betas=[0.95,0.99]", "optimizer.clip_norm=0.01", "optimizer.type=lamb"});
  const State muon = run({"optimizer.type=muon", "optimizer.clip_norm=0.01"});
  CHECK(distance(muon.moments.at(name), adamw.moments.at(name)) < 1e-6);
  const State narrow = run({"optimizer.type=muon", "precision.compute=bf16"});
  const State wide = run({"optimizer.type=muon", "precision.compute=bf16", "optimizer.newton_schulz=fp32"});
  CHECK(first_difference(narrow.moments.at(name), wide.moments.at(name)) == "");
  const double off = distance(narrow.weights.at(name), wide.weights.at(name));
  CHECK(off > 0);
  CHECK(off < 0.1);
}

// With hardly a step and one layer, the next pass has the scores of the scaled weights.
TEST_CASE("QK-clip brings the largest score of every head above the threshold down to it") {
  for (const char* kv_heads : {"model.num_kv_heads=1", "model.num_kv_heads=3"}) {
    const auto results = [&](double threshold) {
      const RunConfig config =
          small_config(Family::llama, {"optimizer.type=muon", "model.qk_norm=false", "model.num_layers=1",
                                       "model.init_std=0.3", "model.num_heads=3", "model.head_size=8", kv_heads,
                                       fmt::format("optimizer.qk_clip={}", threshold)});
      const auto backend = make_cpu_backend(2);
      testing::OneRank rank(config);
      TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
      step.initialize();
      std::vector<StepResult> all;
      for (int i = 0; i < 2; ++i) {
        RandomBatches batches(config);  // the same again
        all.push_back(step.run(1e-12, batches));
      }
      return all;
    };
    const std::vector<StepResult> loose = results(1e6);
    CHECK(loose[0].clipped_heads == 0);
    CHECK(loose[0].largest_score > 0);
    CHECK(loose[1].largest_score == Approx(loose[0].largest_score).epsilon(1e-5));
    const double threshold = loose[0].largest_score / 100;
    const std::vector<StepResult> tight = results(threshold);
    CHECK(tight[0].largest_score == loose[0].largest_score);
    CHECK(tight[0].clipped_heads == 3);
    CHECK(tight[1].largest_score == Approx(threshold).epsilon(1e-5));
  }
}

}  // namespace test_muon
