#include "model/statistics.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "model/record.h"
#include "model/step_statistics.h"

namespace gptrain::inline model {

StatisticsLayout::StatisticsLayout(std::vector<Statistic> statistics) {
  for (Statistic& statistic : statistics) {
    if (statistic.kind != StatisticKind::sum) continue;
    const int64_t offset = num_sums_ * dtype_bytes(DType::f64);
    num_sums_ += statistic.count;
    places_.push_back({std::move(statistic), offset});
  }
  bytes_ = align_up(num_sums_ * dtype_bytes(DType::f64));
  for (Statistic& statistic : statistics) {
    if (statistic.kind != StatisticKind::largest) continue;
    const int64_t bytes = align_up(statistic.count * dtype_bytes(DType::f32));
    places_.push_back({std::move(statistic), bytes_});
    bytes_ += bytes;
  }
}

const StatisticsLayout::Place* StatisticsLayout::place_of(std::string_view name) const {
  const auto found =
      std::find_if(places_.begin(), places_.end(), [&](const Place& place) { return place.statistic.name == name; });
  return found != places_.end() ? &*found : nullptr;
}

Matrix StatisticsLayout::find(std::string_view name, std::byte* block) const {
  const Place* const place = place_of(name);
  if (place == nullptr) return {};
  const bool is_sum = place->statistic.kind == StatisticKind::sum;
  return {block + place->offset, is_sum ? DType::f64 : DType::f32, 1, place->statistic.count};
}

bool StatisticsLayout::has_sum(std::string_view name) const {
  const Place* const place = place_of(name);
  return place != nullptr && place->statistic.kind == StatisticKind::sum;
}

std::span<const double> StatisticsLayout::part_of(std::string_view name, std::span<const double> sums) const {
  if (!has_sum(name)) return {};
  const Place& place = *place_of(name);
  return sums.subspan(static_cast<size_t>(place.offset / dtype_bytes(DType::f64)),
                      static_cast<size_t>(place.statistic.count));
}

std::vector<std::byte> StatisticsLayout::initial_values() const {
  std::vector<std::byte> values(static_cast<size_t>(num_sums_ * dtype_bytes(DType::f64)));
  constexpr float least = -std::numeric_limits<float>::infinity();
  for (const Place& place : places_) {
    if (place.statistic.kind != StatisticKind::largest) continue;
    values.resize(static_cast<size_t>(place.offset + place.statistic.count * dtype_bytes(DType::f32)));
    for (int64_t i = 0; i < place.statistic.count; ++i)
      std::memcpy(values.data() + place.offset + i * dtype_bytes(DType::f32), &least, sizeof least);
  }
  return values;
}

std::vector<StatisticsLayout::Reduction> StatisticsLayout::reductions(std::byte* block) const {
  std::vector<Reduction> all;
  if (num_sums_ > 0) all.push_back({Matrix(block, DType::f64, 1, num_sums_), ReduceOp::sum});
  for (const Place& place : places_) {
    if (place.statistic.kind == StatisticKind::largest)
      all.push_back({Matrix(block + place.offset, DType::f32, 1, place.statistic.count), ReduceOp::max});
  }
  return all;
}

Matrix StepStatistics::find(std::string_view name) const {
  if (layout == nullptr || (!first_pass && layout->has_sum(name))) return {};
  return layout->find(name, block);
}

}  // namespace gptrain::model
