#include "checkpoint/model_check.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/amount.h"
#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "checkpoint/residual_kind.h"
#include "config/axis_sizes.h"
#include "config/load.h"
#include "model/spec/shard.h"
#include "model/spec/spec.h"
#include "optim/types.h"
#include "parallel/gradient_sums.h"
#include "parallel/island_average.h"

namespace gptrain::inline checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view weight_kind = "weight";

// The parts of a stored tensor's name, KIND/NAME.
struct StoredName {
  std::string_view kind, name;
};

StoredName split_name(std::string_view stored) {
  const size_t slash = stored.find('/');
  return slash == std::string_view::npos ? StoredName{"", stored}
                                         : StoredName{stored.substr(0, slash), stored.substr(slash + 1)};
}

struct Expected {
  DType dtype;
  std::vector<int64_t> shape;
};

// The tensors of the config's model on one data rank, and the kinds of tensors that each data rank has its own of.
struct WantedTensors {
  WantedTensors(const StepConfig& config, int64_t world_size)
      : spec(make_spec(config.model)),
        shards(shard_tensors(spec, {config.parallel.tensor, 0})),
        numbers(spec.numbers()) {
    if (!config.compression().error) return;
    const int64_t ranks = replicas_of_parameters(config.parallel, world_size);
    for (int64_t rank = 0; rank < ranks; ++rank) residual_kinds.insert(residual_kind(rank));
  }

  const ModelSpec spec;
  const std::vector<TensorShard> shards;
  const std::unordered_map<std::string_view, size_t> numbers;  // by name
  std::set<std::string, std::less<>> residual_kinds;
};

// Returns the shape and dtype that a checkpoint must have for values of this kind of a tensor; none if the tensor has
// no such values.
std::optional<Expected> expected(std::string_view kind, size_t number, const WantedTensors& model,
                                 const StepConfig& config) {
  const TensorSpec& tensor = model.spec.tensors[number];
  const bool narrow = config.precision.pure && tensor.norm_use == NormUse::no_norm;
  if (kind == weight_kind) return Expected{narrow ? DType::bf16 : DType::f32, tensor.shape};
  if (model.residual_kinds.contains(kind) && codes_gradients(config.compression(), tensor, config.parallel.tensor))
    return Expected{DType::f32, tensor.shape};
  const CompressionConfig compression = config.compression();
  if (compression.facts().has_factors && kind == factor_kind(compression.rank, compression.alternate) &&
      codes_gradients(compression, tensor, config.parallel.tensor)) {
    const int64_t cols = tensor.shape.back();
    const int64_t rows = compression.alternate ? model.shards[number].count() / cols : 0;  // padding included
    return Expected{DType::f32, {compression.rank, cols + rows}};
  }
  for (const StateColumn& column : state_columns(config)) {
    if (!has_values(column, tensor)) continue;
    const int64_t islands = column.name == outer_momentum_column ? 1 : config.parallel.local_steps.islands;
    bool is_of_column = false;
    for (int64_t island = 0; island < islands; ++island) is_of_column |= kind == island_kind(column.name, island);
    if (!is_of_column) continue;
    return Expected{column.dtype, stored_shape(column, tensor, model.shards[number])};
  }
  return std::nullopt;
}

// Returns the fault of a tensor of the checkpoint; empty if there is none.
std::string difference_from_spec(const std::string& stored, const std::vector<Slice>& slices,
                                 const WantedTensors& model, const StepConfig& config) {
  const Slice& tensor = slices.front();
  const StoredName name = split_name(stored);
  const auto found = model.numbers.find(name.name);
  const std::string shown = printable(stored);
  const auto wanted =
      found == model.numbers.end() ? std::optional<Expected>{} : expected(name.kind, found->second, model, config);
  if (!wanted) return fmt::format("tensor \"{}\" is not part of the model", shown);
  if (tensor.global_shape != wanted->shape) {
    return fmt::format("tensor \"{}\" has shape {}, the model's has {}", shown,
                       printable(format_shape(tensor.global_shape)), format_shape(wanted->shape));
  }
  if (tensor.dtype != wanted->dtype) {
    return fmt::format("tensor \"{}\" is {}, the model's is {}", shown, dtype_name(tensor.dtype),
                       dtype_name(wanted->dtype));
  }
  const int64_t covered = covered_elements(slices, whole_box(wanted->shape));
  if (covered == element_count(wanted->shape)) return "";
  return fmt::format("tensor \"{}\" has only {} of its {} elements", shown, covered, element_count(wanted->shape));
}

}  // namespace

RunConfig saved_config(const fs::path& checkpoint, const Manifest& manifest) {
  const std::string file = (checkpoint / manifest_name).string();
  try {
    return parse_config(manifest.config, {}, "\"config\"", manifest.world_size);
  } catch (const Error& error) {
    throw Error(ExitCode::checkpoint, "{} cannot be used: its config is not valid:\n{}", file, error.lines());
  }
}

void check_model(const Contents& contents, const StepConfig& config) {
  const WantedTensors model(config, contents.stored.manifest.world_size);
  std::vector<std::string> differences;
  for (const auto& [name, slices] : contents.tensors) {
    if (std::string found = difference_from_spec(name, slices, model, config); !found.empty())
      differences.push_back(std::move(found));
  }
  for (const TensorSpec& tensor : model.spec.tensors) {
    const std::string name = fmt::format("{}/{}", weight_kind, tensor.name);
    if (!contents.tensors.contains(name)) differences.push_back(fmt::format("tensor \"{}\" is missing", name));
  }
  if (differences.empty()) return;
  constexpr size_t max_listed = 8;
  Lines text;
  for (size_t i = 0; i < std::min(differences.size(), max_listed); ++i) text += Lines("\n  {}", differences[i]);
  if (differences.size() > max_listed) text += Lines("\n  and {} more", differences.size() - max_listed);
  throw Error(ExitCode::checkpoint, "{} does not hold the model of its own config:{}", contents.checkpoint.string(),
              text);
}

Contents check_model(const fs::path& checkpoint) {
  Contents contents = verify_structure(checkpoint);
  const RunConfig saved = saved_config(checkpoint, contents.stored.manifest);
  check_model(contents, saved);
  check_progress(checkpoint, contents.stored.manifest, saved.batch, saved.run.seed);
  return contents;
}

void check_progress(const fs::path& checkpoint, const Manifest& manifest, const BatchConfig& batch, uint64_t seed) {
  const std::string file = (checkpoint / manifest_name).string();
  // If the history is not empty, batch.global may have changed, and earlier steps may have had other batch sizes.
  if (manifest.run.history.empty() && Amount(manifest.progress.step) * batch.global != manifest.progress.samples) {
    throw Error(ExitCode::checkpoint,
                "{} cannot be used: it counts {} samples, but {} steps of {} samples (batch.global) are not as many",
                file, manifest.progress.samples, manifest.progress.step, batch.global);
  }
  if (Amount(manifest.progress.updates) + manifest.progress.skipped != manifest.progress.step ||
      manifest.progress.skipped_in_a_row > manifest.progress.skipped) {
    throw Error(ExitCode::checkpoint,
                "{} cannot be used: {} updates and {} skipped steps, {} in a row, do not make {} steps", file,
                manifest.progress.updates, manifest.progress.skipped, manifest.progress.skipped_in_a_row,
                manifest.progress.step);
  }
  if (manifest.seed != seed) {
    throw Error(ExitCode::checkpoint, "{} cannot be used: its seed {} is not that of its config, {}", file,
                manifest.seed, seed);
  }
}

}  // namespace gptrain::checkpoint
