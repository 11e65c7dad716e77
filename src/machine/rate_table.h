// A measured quantity by the size of what was measured: what lies between the sizes is interpolated.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace gptrain {

// Values on a grid of one to three sizes, interpolated linearly between the logarithms of sizes and values.
class RateTable {
 public:
  // What a value is of what was measured, which says how it goes on beyond the grid: the rate falls with the size below
  // the smallest one (what is smaller takes as long) and stays above the largest; seconds the other way round. A ratio
  // stays on both sides.
  enum class Kind : unsigned char { rate, seconds, ratio };

  RateTable() = default;
  // Each row: the sizes, then the value. What is wrong with them ("is no full grid"); empty: nothing.
  static std::string fault_of(const std::vector<std::vector<double>>& rows, size_t num_sizes);
  // Rows without a fault, in any order.
  RateTable(Kind kind, const std::vector<std::vector<double>>& rows);

  bool empty() const { return values_.empty(); }
  size_t num_sizes() const { return axes_.size(); }
  double at(std::span<const double> sizes) const;
  double at(std::initializer_list<double> sizes) const { return at(std::span(sizes.begin(), sizes.size())); }
  // As they were given, the last size changing first.
  std::vector<std::vector<double>> rows() const;

 private:
  Kind kind_ = Kind::rate;
  std::vector<std::vector<double>> axes_;  // the sizes, rising
  std::vector<double> values_;             // the last axis runs fastest
};

}  // namespace gptrain
