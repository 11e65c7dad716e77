#include "machine/rate_table.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace gptrain::inline machine {
namespace {

// Position of a size on an axis.
struct GridPosition {
  size_t low;     // index of the grid point below it
  double share;   // distance from grid point `low` over the distance to the next one, both in logarithms
  double beyond;  // log(size / smallest) below the axis, log(size / largest) above it, otherwise 0
};

GridPosition position_on(const std::vector<double>& axis, double size) {
  if (size <= axis.front()) return {0, 0, std::log(size / axis.front())};
  if (size >= axis.back()) return {axis.size() - 1, 0, std::log(size / axis.back())};
  const auto above = static_cast<size_t>(std::upper_bound(axis.begin(), axis.end(), size) - axis.begin());
  return {above - 1, std::log(size / axis[above - 1]) / std::log(axis[above] / axis[above - 1]), 0};
}

}  // namespace

std::string RateTable::fault_of(const std::vector<std::vector<double>>& rows, size_t num_sizes) {
  if (rows.empty()) return "has no rows";
  std::vector<std::set<double>> axes(num_sizes);
  std::set<std::vector<double>> sizes;
  for (const std::vector<double>& row : rows) {
    if (row.size() != num_sizes + 1) return "has rows of the wrong length";
    for (const double number : row)
      if (!std::isfinite(number) || number <= 0) return "has numbers that are not above 0";
    for (size_t i = 0; i < num_sizes; ++i) axes[i].insert(row[i]);
    if (!sizes.insert({row.begin(), row.end() - 1}).second) return "has the same sizes twice";
  }
  size_t all = 1;
  for (const std::set<double>& axis : axes) all *= axis.size();
  return all == rows.size() ? "" : "must have a row for each combination of sizes";
}

RateTable::RateTable(Kind kind, const std::vector<std::vector<double>>& rows) : kind_(kind) {
  std::vector<std::vector<double>> sorted = rows;
  std::sort(sorted.begin(), sorted.end());
  axes_.resize(sorted.front().size() - 1);
  for (size_t i = 0; i < axes_.size(); ++i) {
    std::set<double> axis;
    for (const std::vector<double>& row : sorted) axis.insert(row[i]);
    axes_[i].assign(axis.begin(), axis.end());
  }
  for (const std::vector<double>& row : sorted) values_.push_back(row.back());
}

double RateTable::at(std::span<const double> sizes) const {
  std::vector<GridPosition> positions;
  double beyond = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    positions.push_back(position_on(axes_[i], sizes[i]));
    if (kind_ != Kind::ratio && (kind_ == Kind::rate) == (positions.back().beyond < 0))
      beyond += positions.back().beyond;
  }
  double log_value = 0;
  for (size_t corner = 0; corner < size_t{1} << axes_.size(); ++corner) {
    double weight = 1;
    size_t at = 0;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const bool high = (corner >> i & 1) != 0;
      weight *= high ? positions[i].share : 1 - positions[i].share;
      at = at * axes_[i].size() + std::min(positions[i].low + (high ? 1 : 0), axes_[i].size() - 1);
    }
    if (weight > 0) log_value += weight * std::log(values_[at]);
  }
  return std::exp(log_value + beyond);
}

std::vector<std::vector<double>> RateTable::rows() const {
  std::vector<std::vector<double>> rows;
  for (size_t i = 0; i < values_.size(); ++i) {
    std::vector<double> row(axes_.size() + 1);
    row.back() = values_[i];
    size_t rest = i;
    for (size_t axis = axes_.size(); axis-- > 0; rest /= axes_[axis].size())
      row[axis] = axes_[axis][rest % axes_[axis].size()];
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace gptrain::machine
