#include "parallel/island_average.h"

namespace gptrain::inline parallel {
namespace {

Matrix masters(const UpdateRange& range) { return {range.master, DType::f32, 1, range.elements}; }

}  // namespace

StateColumns outer_columns(const LocalStepsConfig& config) {
  StateColumns columns;
  if (config.has_momentum()) columns.push_back({outer_momentum_column});
  return columns;
}

IslandAverage::IslandAverage(const LocalStepsConfig& config, const ParameterStore& parameters, RankGroups& groups,
                             Backend& backend, float* anchors)
    : config_(config), parameters_(parameters), groups_(groups), backend_(backend), anchors_(anchors) {}

int64_t IslandAverage::anchor_elements(const ParameterStore& parameters) {
  int64_t elements = 0;
  for (int64_t unit = 0; unit < parameters.num_parameter_units(); ++unit)
    elements += parameters.update_range(unit).elements;
  return elements;
}

Matrix IslandAverage::anchor(int64_t unit) const {
  int64_t before = 0;
  for (int64_t other = 0; other < unit; ++other) before += parameters_.update_range(other).elements;
  return {anchors_ + before, DType::f32, 1, parameters_.update_range(unit).elements};
}

void IslandAverage::restart() {
  if (config_.outer != OuterStep::nesterov) return;
  for (int64_t unit = 0; unit < parameters_.num_parameter_units(); ++unit) {
    const UpdateRange range = parameters_.update_range(unit);
    if (range.elements > 0) backend_.run(Cast{.from = masters(range), .to = anchor(unit)});
  }
}

void IslandAverage::sum(const Matrix& values) const {
  Lane& lane = groups_.lane(LaneKind::gradients);
  lane.wait(
      lane.all_reduce(groups_.group(LaneKind::gradients, GroupKind::islands), values.data, values.cols, DType::f32));
}

void IslandAverage::average(int64_t unit) {
  const UpdateRange range = parameters_.update_range(unit);
  if (range.elements == 0) return;
  const Matrix weights = masters(range);
  const Matrix buffer(range.gradients, DType::f32, 1, range.elements);
  const double share = 1 / static_cast<double>(config_.islands);
  if (config_.outer == OuterStep::average) {
    backend_.run(Cast{.from = weights, .to = buffer});
    sum(buffer);
    backend_.run(WeightedSum{.a = buffer, .a_factor = share, .b = {}, .b_factor = 0, .to = weights});
  } else {
    const Matrix start = anchor(unit);
    const Matrix momentum(parameters_.column(parameters_.columns().size() - 1, unit), DType::f32, 1, range.elements);
    backend_.run(WeightedSum{.a = start, .a_factor = 1, .b = weights, .b_factor = -1, .to = buffer});
    sum(buffer);
    backend_.run(
        WeightedSum{.a = momentum, .a_factor = config_.outer_momentum, .b = buffer, .b_factor = share, .to = momentum});
    backend_.run(
        WeightedSum{.a = buffer, .a_factor = share, .b = momentum, .b_factor = config_.outer_momentum, .to = buffer});
    backend_.run(WeightedSum{.a = start, .a_factor = 1, .b = buffer, .b_factor = -config_.outer_lr, .to = weights});
    backend_.run(Cast{.from = weights, .to = start});
  }
  if (range.weights == nullptr) return;
  const DType compute = parameters_.sharding().compute;
  backend_.run(Cast{.from = weights, .to = Matrix(range.weights, compute, 1, range.elements)});
}

}  // namespace gptrain::parallel
