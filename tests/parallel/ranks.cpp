#include "ranks.h"

#include <algorithm>
#include <barrier>
#include <bit>
#include <fmt/format.h>
#include <mutex>
#include <stdexcept>

#include "comm/world.h"
#include "config/node_groups.h"
#include "fit/choose_step.h"
#include "fit/fixed_choices.h"
#include "model_fixture.h"
#include "step/update_resources.h"
#include "wrappers.h"

namespace gptrain::testing {
namespace {

// Kind 0 is the weights, the others are the optimizer's columns.
size_t num_kinds(const TrainingStep& step) { return 1 + step.parameters().columns().size(); }

std::string name_of(const TrainingStep& step, size_t kind, const TensorSpec& tensor) {
  return fmt::format("{}/{}", kind == 0 ? "weight" : step.parameters().columns()[kind - 1].name, tensor.name);
}

bool has_kind(const TrainingStep& step, size_t kind, const TensorSpec& tensor) {
  return kind == 0 || has_values(step.parameters().columns()[kind - 1], tensor);
}

bool is_of_blocks(const TrainingStep& step, size_t kind) {
  return kind > 0 && step.parameters().columns()[kind - 1].granularity == StateGranularity::block;
}

bool is_of_lines(const TrainingStep& step, size_t kind) {
  return kind > 0 && is_factored(step.parameters().columns()[kind - 1]);
}

// Returns the number of values that a piece has of a kind.
int64_t num_values(const TrainingStep& step, const StateSlice& piece, size_t kind) {
  if (kind == 0) return piece.count();
  const StateColumn& column = step.parameters().columns()[kind - 1];
  return piece.column_bytes(column) / dtype_bytes(column.dtype);
}

const float* data_of(const StateSlice& piece, size_t kind) {
  return kind == 0 ? piece.weight : column(piece, kind - 1);
}

// Calls body(index in the global tensor, index in the piece) for each element.
void for_each_element(const StateSlice& piece, const std::vector<int64_t>& global_shape,
                      const std::function<void(size_t, size_t)>& body) {
  const int64_t cols = global_shape.size() == 2 ? global_shape[1] : 1;
  const int64_t width = piece.shape.size() == 2 ? piece.shape[1] : 1;
  for (int64_t i = 0; i < piece.count(); ++i) {
    const int64_t row = piece.offset[0] + i / width;
    const int64_t col = (piece.shape.size() == 2 ? piece.offset[1] : 0) + i % width;
    body(static_cast<size_t>(row * cols + col), static_cast<size_t>(i));
  }
}

// Calls body for values of any kind; blocks, rows and columns are called with their numbers.
void for_each_value(const TrainingStep& step, const StateSlice& piece, size_t kind,
                    const std::function<void(size_t, size_t)>& body) {
  if (is_of_lines(step, kind)) {
    for (size_t i = 0; i < static_cast<size_t>(num_values(step, piece, kind)); ++i) body(i, i);
    return;
  }
  if (!is_of_blocks(step, kind)) {
    return for_each_element(piece, step.spec().tensors[static_cast<size_t>(piece.tensor)].shape, body);
  }
  for (int64_t i = 0; i < piece.num_blocks; ++i)
    body(static_cast<size_t>(piece.first_block + i), static_cast<size_t>(i));
}

// Returns a piece's values; codes are returned as their numbers.
std::vector<float> download(const TrainingStep& step, const StateSlice& piece, size_t kind) {
  std::vector<float> values(static_cast<size_t>(num_values(step, piece, kind)));
  if (values.empty()) return values;
  if (kind > 0 && step.parameters().columns()[kind - 1].dtype == DType::u8) {
    std::vector<uint8_t> codes(values.size());
    step.read_state(codes.data(), piece.columns[kind - 1], piece.count());
    return {codes.begin(), codes.end()};
  }
  if (const float* const data = data_of(piece, kind); data != nullptr) {
    step.read_state(values.data(), data, std::ssize(values) * dtype_bytes(DType::f32));
    return values;
  }
  std::vector<bf16> narrow(values.size());
  step.read_state(narrow.data(), piece.narrow_weight, piece.count() * dtype_bytes(DType::bf16));
  std::transform(narrow.begin(), narrow.end(), values.begin(), [](bf16 value) { return to_float(value); });
  return values;
}

void set_weights(TrainingStep& step, const GlobalState& start) {
  for (const StateSlice& piece : step.state()) {
    const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
    const std::vector<float>& values = start.at("weight/" + tensor.name);
    std::vector<float> weight(static_cast<size_t>(piece.count()));
    for_each_element(piece, tensor.shape, [&](size_t global, size_t local) { weight[local] = values[global]; });
    step.write_state(piece.weight, weight.data(), piece.count() * dtype_bytes(DType::f32));
  }
  step.weights_changed();
}

// Adds the values that this rank would write; `owners` counts the ranks that have an element.
void collect(const TrainingStep& step, GlobalState& state, std::map<std::string, std::vector<int>>& owners) {
  if (step.design().config.parallel.zero_node_copy && step.groups().island() > 0) return;  // the first node writes
  for (const StateSlice& piece : step.state(true)) {
    const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
    for (size_t kind = 0; kind < num_kinds(step); ++kind) {
      if (!has_kind(step, kind, tensor)) continue;
      std::vector<float>& values = state[name_of(step, kind, tensor)];
      const TensorShard& shard = (*step.design().shards)[static_cast<size_t>(piece.tensor)];
      values.resize(static_cast<size_t>(
          kind == 0 ? tensor.count()
                    : element_count(stored_shape(step.parameters().columns()[kind - 1], tensor, shard))));
      const std::vector<float> data = download(step, piece, kind);
      for_each_value(step, piece, kind, [&](size_t global, size_t local) { values[global] = data[local]; });
      if (!is_of_lines(step, kind)) continue;
      std::vector<int>& of_lines = owners[name_of(step, kind, tensor)];
      of_lines.resize(values.size());
      for_each_value(step, piece, kind, [&](size_t global, size_t) { ++of_lines[global]; });
    }
    std::vector<int>& counts = owners[tensor.name];
    counts.resize(static_cast<size_t>(tensor.count()));
    for_each_element(piece, tensor.shape, [&](size_t global, size_t) { ++counts[global]; });
  }
}

// Returns the first tensor of which this rank holds other bits than the written ones.
std::string torn_tensor(const TrainingStep& step, const GlobalState& state) {
  std::string torn;
  for (const StateSlice& piece : step.state()) {
    const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
    for (size_t kind = 0; kind < num_kinds(step); ++kind) {
      if (!has_kind(step, kind, tensor)) continue;
      const std::vector<float>& values = state.at(name_of(step, kind, tensor));
      const std::vector<float> data = download(step, piece, kind);
      for_each_value(step, piece, kind, [&](size_t global, size_t local) {
        if (torn.empty() && std::bit_cast<uint32_t>(values[global]) != std::bit_cast<uint32_t>(data[local]))
          torn = tensor.name;
      });
    }
  }
  return torn;
}

// Gives up the rank's groups when it fails, so that the others do not wait.
class Leaving {
 public:
  explicit Leaving(std::barrier<>& barrier) : barrier_(barrier) {}
  ~Leaving() { barrier_.arrive_and_drop(); }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

 private:
  std::barrier<>& barrier_;
};

// Returns the lanes' groups with more than one rank, in the order in which RankGroups makes them; other groups come
// later.
std::vector<LaneGroup> made_groups(const RunConfig& config, int64_t world_size, int64_t rank) {
  const Mesh mesh = make_mesh(config, world_size);
  std::vector<LaneGroup> groups = lane_groups(config);
  std::erase_if(groups,
                [&](const LaneGroup& group) { return group_ranks(config, mesh, rank, group.group).size() == 1; });
  return groups;
}

// Returns the design with `more` statistics.
std::shared_ptr<const StepDesign> with_statistics(std::shared_ptr<const StepDesign> design,
                                                  const std::vector<Statistic>& more) {
  if (more.empty()) return design;
  auto changed = std::make_shared<StepDesign>(*design);
  std::vector<Statistic> statistics = step_statistics(changed->config);
  statistics.insert(statistics.end(), more.begin(), more.end());
  declare_statistics(*changed, std::move(statistics));
  return changed;
}

}  // namespace

void on_ranks(const RunConfig& asked, int64_t world_size, const GlobalState* start, const Wrapping& wrapping,
              const std::function<void(RankContext&)>& body) {
  RunConfig config = asked;
  choose_hierarchy(config, world_size, 0, [](const NodeSplit&) { return true; });
  run_local_ranks(static_cast<int>(world_size), [&](World& world) {
    const int64_t rank = world.rank();
    const std::vector<LaneGroup> made = made_groups(config, world_size, rank);
    WrappingWorld wrapped(world, [&](size_t index, std::unique_ptr<Communicator> group) {
      if (!wrapping.group || index >= made.size()) return group;
      return wrapping.group(rank, made[index].lane, made[index].group, std::move(group));
    });
    RankGroups groups(config, wrapped);
    const auto device = wrapping.device ? wrapping.device(rank) : make_cpu_backend(1);
    const auto decorated = wrapping.backend ? wrapping.backend(rank, *device) : nullptr;
    Backend& backend = decorated ? *decorated : *device;
    groups.use_memory_of(backend, false, config.comm.timeout_seconds);
    const StepPlan plan = wrapping.choices == nullptr
                              ? plan_rank({config, backend.target(), world_size}, rank)
                              : plan_step({config, backend.target(), world_size},
                                          choices_with(config.memory, backend.target(), *wrapping.choices), rank);
    const UpdateResources updates(*plan.design, backend, rank);
    TrainingStep step(with_statistics(plan.design, wrapping.statistics), backend, groups, updates.device());
    step.initialize();
    if (start != nullptr) set_weights(step, *start);
    RankContext context{.groups = groups, .step = step, .plan = plan, .world = world};
    body(context);
  });
}

Outcome train_on_ranks(const RunConfig& config, int64_t world_size, int steps, const GlobalState* start,
                       int64_t first_sample, const Wrapping& wrapping) {
  const auto make = [&](const RankContext& rank) {
    return std::make_unique<RandomBatches>(config, first_sample, rank.groups);
  };
  const int64_t all = config.batch.global * config.model.sequence_length;
  return train_on_batches(config, world_size, steps, start, {make, [all](int) { return all; }}, wrapping);
}

Outcome train_on_batches(const RunConfig& config, int64_t world_size, int steps, const GlobalState* start,
                         const StepBatches& batches, const Wrapping& wrapping) {
  Outcome outcome;
  std::map<std::string, std::vector<int>> owners;
  std::mutex mutex;
  std::barrier all_collected(world_size);
  on_ranks(config, world_size, start, wrapping, [&](RankContext& rank) {
    const Leaving leaving(all_collected);
    if (wrapping.before) wrapping.before(rank);
    const std::unique_ptr<MicroBatchSource> source = batches.make(rank);
    for (int i = 0; i < steps; ++i) {
      const StepResult result = rank.step.run(1e-3, *source, nullptr, {}, batches.counted_targets(i));
      if (rank.groups.rank() == 0) {
        outcome.losses.push_back(result.loss);
        outcome.norms.push_back(result.grad_norm);
      }
    }
    if (wrapping.after) wrapping.after(rank);
    {
      const std::lock_guard lock(mutex);
      collect(rank.step, outcome.state, owners);
    }
    all_collected.arrive_and_wait();
    const std::string torn = torn_tensor(rank.step, outcome.state);
    const std::lock_guard lock(mutex);
    if (!torn.empty()) outcome.torn = torn;
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
