#include "ranks.h"

#include <exception>
#include <fmt/format.h>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "comm/world.h"
#include "model_fixture.h"
#include "train/plan_step.h"

namespace gptrain::testing {
namespace {

constexpr const char* kinds[] = {"weight", "exp_avg", "exp_avg_sq"};

float* data_of(const StatePiece& piece, size_t kind) {
  return kind == 0 ? piece.weight : kind == 1 ? piece.exp_avg : piece.exp_avg_sq;
}

// Calls body(index in the global tensor, index in the piece) for each element.
void for_each_element(const StatePiece& piece, const std::vector<int64_t>& global_shape,
                      const std::function<void(size_t, size_t)>& body) {
  const int64_t cols = global_shape.size() == 2 ? global_shape[1] : 1;
  const int64_t width = piece.shape.size() == 2 ? piece.shape[1] : 1;
  for (int64_t i = 0; i < piece.count(); ++i) {
    const int64_t row = piece.offset[0] + i / width;
    const int64_t col = (piece.shape.size() == 2 ? piece.offset[1] : 0) + i % width;
    body(static_cast<size_t>(row * cols + col), static_cast<size_t>(i));
  }
}

void set_weights(TrainingStep& step, const GlobalState& start) {
  for (const StatePiece& piece : step.state()) {
    const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
    const std::vector<float>& values = start.at("weight/" + tensor.name);
    for_each_element(piece, tensor.shape, [&](size_t global, size_t local) { piece.weight[local] = values[global]; });
  }
  step.weights_changed();
}

// Adds what this rank would write; `owners` counts the ranks that have an element.
void collect(const TrainingStep& step, GlobalState& state, std::map<std::string, std::vector<int>>& owners) {
  for (const StatePiece& piece : step.state(true)) {
    const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
    for (size_t kind = 0; kind < std::size(kinds); ++kind) {
      std::vector<float>& values = state[fmt::format("{}/{}", kinds[kind], tensor.name)];
      values.resize(static_cast<size_t>(tensor.count()));
      const float* data = data_of(piece, kind);
      for_each_element(piece, tensor.shape, [&](size_t global, size_t local) { values[global] = data[local]; });
    }
    std::vector<int>& counts = owners[tensor.name];
    counts.resize(static_cast<size_t>(tensor.count()));
    for_each_element(piece, tensor.shape, [&](size_t global, size_t) { ++counts[global]; });
  }
}

}  // namespace

void on_ranks(const RunConfig& config, int64_t world_size, const GlobalState* start,
              const std::function<void(RankContext&)>& body) {
  auto worlds = make_local_world(static_cast<int>(world_size));
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        RankGroups groups(config, *worlds[static_cast<size_t>(rank)]);
        const auto backend = make_cpu_backend(1);
        const StepPlan plan = plan_step(config, backend->target(), world_size, rank);
        TrainingStep step(config, plan.memory, *backend, groups);
        step.initialize();
        if (start != nullptr) set_weights(step, *start);
        RankContext context{groups, step};
        body(context);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        // The peers must not wait for this rank.
        worlds[static_cast<size_t>(rank)].reset();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

Outcome train_on_ranks(const RunConfig& config, int64_t world_size, int steps, const GlobalState* start,
                       int64_t first_sample) {
  Outcome outcome;
  std::map<std::string, std::vector<int>> owners;
  std::mutex mutex;
  on_ranks(config, world_size, start, [&](RankContext& rank) {
    RandomBatches batches(config, first_sample, rank.groups.data_rank(), rank.groups.data_size());
    for (int i = 0; i < steps; ++i) {
      const StepResult result = rank.step.run(1e-3, batches);
      if (rank.groups.rank() == 0) {
        outcome.losses.push_back(result.loss);
        outcome.norms.push_back(result.grad_norm);
      }
    }
    const std::lock_guard lock(mutex);
    collect(rank.step, outcome.state, owners);
  });
  for (const auto& [name, counts] : owners) {
    for (const int count : counts) {
      if (count != 1) throw std::logic_error(fmt::format("{}: {} ranks would write an element", name, count));
    }
  }
  for (const TensorSpec& tensor : make_spec(config.model).tensors) {
    if (!owners.contains(tensor.name)) throw std::logic_error(fmt::format("{}: no rank would write it", tensor.name));
  }
  return outcome;
}

}  // namespace gptrain::testing
