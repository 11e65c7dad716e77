#include "step/checkpoint_forecast.h"

#include <algorithm>
#include <fmt/format.h>

#include "base/units.h"
#include "config/node_groups.h"
#include "model/spec/shard.h"
#include "optim/types.h"
#include "parallel/gradient_sums.h"
#include "parallel/island_average.h"

namespace gptrain::inline step {

int64_t weight_bytes(const TensorSpec& tensor, const PrecisionConfig& precision) {
  return dtype_bytes(precision.pure && tensor.norm_use == NormUse::no_norm ? DType::bf16 : DType::f32);
}

int64_t checkpoint_bytes(const ModelSpec& spec, const StepConfig& config, int64_t data_ranks) {
  int64_t bytes =
      all_residual_bytes(config.compression(), spec, config.parallel.tensor, data_ranks / ranks_of_residual(config));
  const StateColumns columns = state_columns(config);
  for (const TensorSpec& tensor : spec.tensors) {
    bytes += tensor.count() * weight_bytes(tensor, config.precision);
    for (const StateColumn& column : columns) {
      if (!has_values(column, tensor)) continue;
      const TensorShard shard = shard_of(tensor, {config.parallel.tensor, 0});
      const int64_t copies = column.name == outer_momentum_column ? 1 : config.parallel.local_steps.islands;
      bytes += copies * element_count(stored_shape(column, tensor, shard)) * dtype_bytes(column.dtype);
    }
  }
  return bytes;
}

CheckpointForecast forecast_checkpoint(int64_t bytes, const std::vector<int64_t>& of_ranks, const Mesh& mesh,
                                       int64_t ranks_per_node, const StorageRates& rates, const MemoryPlan& largest) {
  CheckpointForecast forecast{.bytes = bytes};
  const int64_t of_node = ranks_per_node > 0 ? ranks_per_node : mesh.world_size();
  int64_t node = 0;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const MeshPoint at = mesh.coordinates(rank);
    const int64_t kind = at[MeshAxis::pipeline] * mesh.size(MeshAxis::tensor) + at[MeshAxis::tensor];
    const int64_t of_rank = of_ranks[kind];
    if (rank % of_node == 0) node = 0;
    node += of_rank;
    forecast.rank_bytes = std::max(forecast.rank_bytes, of_rank);
    forecast.node_bytes = std::max(forecast.node_bytes, node);
  }
  // All data ranks were counted like the first, so the sum may exceed the checkpoint.
  forecast.node_bytes = std::min(forecast.node_bytes, bytes);
  if (forecast.rank_bytes > 0) {
    const auto cloned = static_cast<double>(largest.on(MemoryPlace::disk)[MemoryClass::snapshot]);
    forecast.copied_share = std::max(1 - cloned / static_cast<double>(forecast.rank_bytes), 0.0);
  }
  const auto written = static_cast<double>(forecast.node_bytes);
  if (rates.shared > 0) forecast.seconds = written / rates.shared;
  if (rates.local > 0) forecast.local_seconds = written / rates.local;
  return forecast;
}

std::string checkpoint_remark(const CheckpointForecast& forecast) {
  const auto size = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  std::string remark = fmt::format("{} a rank, {} a node", size(forecast.rank_bytes), size(forecast.node_bytes));
  if (forecast.seconds > 0) {
    const double rate = static_cast<double>(forecast.node_bytes) / forecast.seconds;
    remark += fmt::format("; {} at {:.3g} GB/s a node", format_duration(forecast.seconds), rate / 1e9);
  }
  if (forecast.local_seconds > 0)
    remark += fmt::format(", {} to its own drives", format_duration(forecast.local_seconds));
  return remark;
}

Json checkpoint_json(const CheckpointForecast& forecast) {
  Json json{{"checkpoint_bytes", forecast.bytes},
            {"checkpoint_bytes_per_rank", forecast.rank_bytes},
            {"checkpoint_bytes_per_node", forecast.node_bytes}};
  if (forecast.seconds > 0) json["checkpoint_seconds"] = forecast.seconds;
  if (forecast.local_seconds > 0) json["checkpoint_seconds_to_own_drives"] = forecast.local_seconds;
  return json;
}

}  // namespace gptrain::step
