// A measured quantity as a function of one to three sizes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace gptrain::inline machine {

// Values on a full grid of sizes; between them, logarithms of values are interpolated linearly in logarithms of sizes.
class RateTable {
 public:
  // How values continue beyond the grid. Below the smallest size a rate falls in proportion to it (anything smaller
  // takes as long) and seconds stay; above the largest size a rate stays and seconds grow in proportion. A ratio always
  // stays.
  enum class Kind : unsigned char { rate, seconds, ratio };

  RateTable() = default;
  // Returns the first fault of the rows ("must have a row for each combination of sizes"), or an empty text. A row is
  // the sizes, then the value.
  static std::string fault_of(const std::vector<std::vector<double>>& rows, size_t num_sizes);
  // REQUIRES: fault_of(rows) is empty. Rows may have any order.
  RateTable(Kind kind, const std::vector<std::vector<double>>& rows);

  bool empty() const { return values_.empty(); }
  size_t num_sizes() const { return axes_.size(); }
  // Returns the value at num_sizes() sizes. REQUIRES: the table is not empty, and the sizes are above 0.
  double at(std::span<const double> sizes) const;
  double at(std::initializer_list<double> sizes) const { return at(std::span(sizes.begin(), sizes.size())); }
  // Returns the rows in rising order of their sizes.
  std::vector<std::vector<double>> rows() const;

 private:
  Kind kind_ = Kind::rate;
  std::vector<std::vector<double>> axes_;  // sizes of the grid along each axis, rising
  std::vector<double> values_;             // in row-major order: the last axis changes fastest
};

}  // namespace gptrain::machine
