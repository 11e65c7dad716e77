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
    entries_.push_back({std::move(statistic), offset});
  }
  bytes_ = align_up(num_sums_ * dtype_bytes(DType::f64));
  for (Statistic& statistic : statistics) {
    if (statistic.kind != StatisticKind::largest) continue;
    const int64_t bytes = align_up(statistic.count * dtype_bytes(DType::f32));
    entries_.push_back({std::move(statistic), bytes_});
    bytes_ += bytes;
  }
}

const StatisticsLayout::Entry* StatisticsLayout::entry_of(std::string_view name) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.statistic.name == name; });
  return found != entries_.end() ? &*found : nullptr;
}

Matrix StatisticsLayout::find(std::string_view name, std::byte* block) const {
  const Entry* const entry = entry_of(name);
  if (entry == nullptr) return {};
  const bool is_sum = entry->statistic.kind == StatisticKind::sum;
  return {block + entry->offset, is_sum ? DType::f64 : DType::f32, 1, entry->statistic.count};
}

bool StatisticsLayout::has_sum(std::string_view name) const {
  const Entry* const entry = entry_of(name);
  return entry != nullptr && entry->statistic.kind == StatisticKind::sum;
}

std::span<const double> StatisticsLayout::part_of(std::string_view name, std::span<const double> sums) const {
  if (!has_sum(name)) return {};
  const Entry& entry = *entry_of(name);
  return sums.subspan(entry.offset / dtype_bytes(DType::f64), entry.statistic.count);
}

std::vector<std::byte> StatisticsLayout::initial_values() const {
  std::vector<std::byte> values(num_sums_ * dtype_bytes(DType::f64));
  constexpr float least = -std::numeric_limits<float>::infinity();
  for (const Entry& entry : entries_) {
    if (entry.statistic.kind != StatisticKind::largest) continue;
    values.resize(entry.offset + entry.statistic.count * dtype_bytes(DType::f32));
    for (int64_t i = 0; i < entry.statistic.count; ++i)
      std::memcpy(values.data() + entry.offset + i * dtype_bytes(DType::f32), &least, sizeof least);
  }
  return values;
}

std::vector<StatisticsLayout::Reduction> StatisticsLayout::reductions(std::byte* block) const {
  std::vector<Reduction> all;
  if (num_sums_ > 0) all.push_back({Matrix(block, DType::f64, 1, num_sums_), ReduceOp::sum});
  for (const Entry& entry : entries_) {
    if (entry.statistic.kind == StatisticKind::largest)
      all.push_back({Matrix(block + entry.offset, DType::f32, 1, entry.statistic.count), ReduceOp::max});
  }
  return all;
}

Matrix StepStatistics::find(std::string_view name) const {
  if (layout == nullptr || (!first_pass && layout->has_sum(name))) return {};
  return layout->find(name, block);
}

}  // namespace gptrain::model
