// Steps of islands that average their weights now and then: against plain steps, and against the formulas in float64.
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

#include "catch.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_check.h"
#include "model_fixture.h"
#include "ranks.h"
#include "step/step_design.h"
#include "train/run_state.h"

namespace test_local_steps {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

using Weights = std::map<std::string, std::vector<float>>;  // by tensor; 0 where a rank has no values

struct Trained {
  std::vector<Weights> weights;  // by rank
  std::vector<double> losses, norms;
};

RunConfig config_of(std::vector<std::string> overrides, int64_t ranks) {
  overrides.insert(overrides.begin(), {"batch.global=8", "batch.micro=1", "model.num_heads=4", "model.hidden_size=40",
                                       "run.steps=1000", "optimizer.clip_norm=0"});
  return small_config(Family::gpt2, overrides, ranks);
}

std::string local(const std::string& keys) { return "parallel.local_steps={" + keys + "}"; }

// Calls body(value on the rank, value of the whole tensor) for each weight that the rank updates.
template <typename Body>
void for_each_weight(const TrainingStep& step, Weights& weights, const Body& body) {
  for (const StateSlice& piece : step.state()) {
    const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
    std::vector<float>& values = weights[tensor.name];
    values.resize(static_cast<size_t>(tensor.count()));
    const bool is_matrix = piece.shape.size() == 2;
    const int64_t cols = is_matrix ? tensor.shape[1] : 1, width = is_matrix ? piece.shape[1] : 1;
    for (int64_t i = 0; i < piece.count(); ++i) {
      const int64_t at = (piece.offset[0] + i / width) * cols + (is_matrix ? piece.offset[1] : 0) + i % width;
      body(piece.weight[i], values[static_cast<size_t>(at)]);
    }
  }
}

Weights weights_of(const TrainingStep& step) {
  Weights weights;
  for_each_weight(step, weights, [](float own, float& value) { value = own; });
  return weights;
}

Trained train(const RunConfig& config, int64_t ranks, int64_t steps) {
  Trained trained;
  trained.weights.resize(static_cast<size_t>(ranks));
  std::mutex mutex;
  on_ranks(config, ranks, nullptr, {}, [&](RankContext& rank) {
    RandomBatches batches(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
    for (int64_t step = 0; step < steps; ++step) {
      rank.step.use_program(rank.step.design().program_after(step));
      const StepResult result = rank.step.run(1e-2, batches);
      if (rank.groups.rank() > 0) continue;
      trained.losses.push_back(result.loss);
      trained.norms.push_back(result.grad_norm);
    }
    const std::lock_guard lock(mutex);
    trained.weights[static_cast<size_t>(rank.groups.rank())] = weights_of(rank.step);
  });
  return trained;
}

// Returns the largest difference between values that both ranks hold, relative to the largest value of the tensor.
double difference(const Weights& a, const Weights& b) {
  double most = 0;
  for (const auto& [name, values] : a) {
    double largest = 1e-3;
    for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
    const auto found = b.find(name);
    for (size_t i = 0; found != b.end() && i < values.size(); ++i) {
      if (values[i] == 0 || found->second[i] == 0) continue;
      most = std::max(most, std::abs(static_cast<double>(values[i]) - found->second[i]) / largest);
    }
  }
  return most;
}

}  // namespace

TEST_CASE("one island trains like a run without local steps, to the bit") {
  const Trained plain = train(config_of({"parallel.zero=1"}, 2), 2, 3);
  const Trained island = train(config_of({"parallel.zero=1", local(R"("islands": 1, "every": 2)")}, 2), 2, 3);
  CHECK(island.losses == plain.losses);
  CHECK(island.weights == plain.weights);
}

TEST_CASE("islands that average SGD's weights after each step train like plain sums, but for rounding") {
  struct Case {
    std::vector<std::string> overrides;
    int64_t ranks;
    size_t peer;  // rank with the place of rank 0 on the second island
  };
  const std::vector<Case> cases = {{{"parallel.zero=0"}, 2, 1},
                                   {{"parallel.zero=1"}, 4, 2},
                                   {{"parallel.zero=3"}, 4, 2},
                                   {{"parallel.zero=0", "parallel.tensor=2"}, 4, 2},
                                   {{"parallel.zero=1", "parallel.pipeline=2", "model.tied_head=true"}, 8, 2}};
  for (const Case& layout : cases) {
    INFO(layout.overrides.back() << " " << layout.ranks);
    std::vector<std::string> overrides = layout.overrides;
    overrides.insert(overrides.end(), {"optimizer.type=sgd", "optimizer.momentum=0.0"});
    const Trained plain = train(config_of(overrides, layout.ranks), layout.ranks, 4);
    overrides.push_back(local(R"("islands": 2, "every": 1)"));
    const Trained averaged = train(config_of(overrides, layout.ranks), layout.ranks, 4);
    for (size_t step = 0; step < plain.losses.size(); ++step)
      CHECK(averaged.losses[step] == Approx(plain.losses[step]).epsilon(1e-5));
    CHECK(averaged.norms.front() > plain.norms.front());  // the mean's norm is smaller than those of its parts
    for (size_t rank = 0; rank < plain.weights.size(); ++rank)
      CHECK(difference(averaged.weights[rank], plain.weights[rank]) < 2e-5);
    CHECK(averaged.weights[layout.peer] == averaged.weights[0]);
  }
}

TEST_CASE("steps before the first local one sum over all islands") {
  for (const std::string zero : {"0", "2"}) {
    const int64_t ranks = zero == "0" ? 2 : 4;
    const auto peer = static_cast<size_t>(ranks / 2);
    const std::string of_zero = "parallel.zero=" + zero;
    const Trained plain = train(config_of({of_zero}, ranks), ranks, 4);
    const RunConfig config = config_of({of_zero, local(R"("islands": 2, "every": 4, "start_step": 2)")}, ranks);
    const Trained trained = train(config, ranks, 4);
    for (size_t step = 0; step < 3; ++step) CHECK(trained.losses[step] == Approx(plain.losses[step]).epsilon(1e-6));
    CHECK(trained.norms[1] == Approx(plain.norms[1]).epsilon(1e-6));
    CHECK(trained.losses[3] != Approx(plain.losses[3]).epsilon(1e-6));
    CHECK(trained.weights[peer] == trained.weights[0]);  // the fourth step averages
    const Trained between = train(config, ranks, 3);
    CHECK(difference(between.weights[peer], between.weights[0]) > 1e-5);
  }
}

// Two islands of one rank, each held against a run of one rank with the island's samples.
TEST_CASE("islands step as DiLoCo's formulas say") {
  constexpr int64_t every = 3, steps = 6;
  constexpr double outer_lr = 0.7, outer_momentum = 0.9;
  const std::string keys = R"("islands": 2, "every": 3, "outer": "nesterov")";
  const RunConfig config = config_of({local(keys), "optimizer.weight_decay=0.1"}, 2);
  const RunConfig alone = config_of({"batch.global=4", "optimizer.weight_decay=0.1"}, 1);
  const auto averaged_after = [&](int64_t done) { return train(config, 2, done).weights.front(); };
  const std::vector<Weights> anchors = {averaged_after(0), averaged_after(every), averaged_after(steps)};
  std::vector<std::vector<Weights>> of_islands(2);
  for (int64_t island = 0; island < 2; ++island) {
    on_ranks(alone, 1, nullptr, {}, [&](RankContext& rank) {
      RandomBatches batches(config, 0, island, 2);
      for (int64_t step = 0; step < steps; ++step) {
        rank.step.run(1e-2, batches);
        if ((step + 1) % every != 0) continue;
        of_islands[static_cast<size_t>(island)].push_back(weights_of(rank.step));
        Weights averaged = anchors[static_cast<size_t>((step + 1) / every)];
        for_each_weight(rank.step, averaged, [](float& own, float value) { own = value; });
        rank.step.weights_changed();
      }
    });
  }
  double most = 0;
  for (const auto& [name, start] : anchors[0]) {
    for (size_t i = 0; i < start.size(); ++i) {
      double momentum = 0;
      for (size_t round = 0; round < 2; ++round) {
        const double anchor = anchors[round].at(name)[i];
        const double mean =
            (static_cast<double>(of_islands[0][round].at(name)[i]) + of_islands[1][round].at(name)[i]) / 2;
        momentum = outer_momentum * momentum + (anchor - mean);
        const double expected = anchor - outer_lr * (anchor - mean + outer_momentum * momentum);
        most = std::max(most, std::abs(expected - anchors[round + 1].at(name)[i]));
      }
    }
  }
  CHECK(most < 1e-5);
}

TEST_CASE("islands resume from a checkpoint to the bit, each with its own moments") {
  namespace fs = std::filesystem;
  const fs::path out = fs::temp_directory_path() / fmt::format("local-steps-{}", getpid());
  const std::string keys = local(R"("islands": 2, "every": 2, "outer": "nesterov")");
  RunConfig config = config_of({keys}, 2);
  config.run.out = out.string();
  const auto all_of = [](const TrainingStep& step) {
    std::vector<float> values;
    for (const StateSlice& piece : step.state()) {
      values.insert(values.end(), piece.weight, piece.weight + piece.count());
      for (std::byte* const column : piece.columns) {
        const auto* const first = reinterpret_cast<const float*>(column);
        values.insert(values.end(), first, first + piece.count());
      }
    }
    return values;
  };
  // Trains whole, or from the checkpoint of step 2 on; returns the state of each rank.
  const auto train_to_end = [&](const RunConfig& of, int64_t ranks, bool resumes, double& third_loss) {
    std::vector<std::vector<float>> states(static_cast<size_t>(ranks));
    on_ranks(of, ranks, nullptr, {}, [&](RankContext& rank) {
      RandomBatches batches(of, resumes ? 2 * of.batch.global : 0, rank.groups.sample_rank(),
                            rank.groups.num_sample_ranks());
      if (resumes) load_state(list_checkpoints(out).front().path, rank.step, rank.groups, rank.world);
      for (int64_t step = resumes ? 2 : 0; step < 4; ++step) {
        rank.step.use_program(rank.step.design().program_after(step));
        const StepResult result = rank.step.run(1e-2, batches);
        if (step == 2 && rank.groups.rank() == 0) third_loss = result.loss;
        if (step == 1) save_state(of, rank.step, {.step = 2, .samples = 16, .updates = 2}, rank.groups, rank.world);
      }
      states[static_cast<size_t>(rank.groups.rank())] = all_of(rank.step);
    });
    return states;
  };
  double loss = 0, resumed_loss = 0, loss_of_four = 0;
  const auto whole = train_to_end(config, 2, false, loss);
  const fs::path checkpoint = list_checkpoints(out).front().path;
  CHECK_NOTHROW(verify_checkpoint(checkpoint));
  CHECK_NOTHROW(check_model(checkpoint));
  CHECK(train_to_end(config, 2, true, resumed_loss) == whole);
  CHECK(whole[0] != whole[1]);
  CHECK(resumed_loss == loss);
  train_to_end(config_of({keys, "parallel.zero=1"}, 4), 4, true, loss_of_four);
  CHECK(loss_of_four == Approx(loss).epsilon(1e-5));
  fs::remove_all(out);
}

TEST_CASE("a run's steps play the programs of local steps, and the last one averages") {
  RunConfig config = config_of({local(R"("islands": 2, "every": 3, "start_step": 2)")}, 2);
  config.run.steps = 8;
  on_ranks(config, 2, nullptr, {}, [&](RankContext& rank) {
    const StepDesign& design = rank.step.design();
    std::string names;
    for (int64_t step = 0; step < 8; ++step)
      names += std::string(design.programs[design.program_after(step)].name) + " ";
    CHECK(names == "warm-up warm-up averaging local local averaging local averaging ");
    CHECK(design.are_equal_after(2));
    CHECK_FALSE(design.are_equal_after(5));
  });
}

}  // namespace test_local_steps
