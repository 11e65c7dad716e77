#include "reference.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace gptrain::ops_test {

std::string name_of(const DTypes& dtypes) {
  return fmt::format("C={} R={}", dtype_name(dtypes.compute), dtype_name(dtypes.residual));
}

double rounded(double value, DType dtype) {
  if (dtype == DType::f64) return value;
  const auto single = static_cast<float>(value);
  if (dtype == DType::f16) return static_cast<double>(to_float(to_f16(single)));
  return static_cast<double>(dtype == DType::bf16 ? to_float(to_bf16(single)) : single);
}

std::vector<double> rounded(std::vector<double> values, DType dtype) {
  for (double& value : values) value = rounded(value, dtype);
  return values;
}

std::array<uint32_t, 4> reference_philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const auto high = [](uint64_t product) { return static_cast<uint32_t>(product >> 32); };
  const auto low = [](uint64_t product) { return static_cast<uint32_t>(product & 0xFFFFFFFFU); };
  for (uint32_t round = 0; round < 10; ++round) {
    const uint32_t key0 = key[0] + round * 0x9E3779B9U;
    const uint32_t key1 = key[1] + round * 0xBB67AE85U;
    const uint64_t product0 = static_cast<uint64_t>(counter[0]) * 0xD2511F53U;
    const uint64_t product1 = static_cast<uint64_t>(counter[2]) * 0xCD9E8D57U;
    counter = {high(product1) ^ counter[1] ^ key0, low(product1), high(product0) ^ counter[3] ^ key1, low(product0)};
  }
  return counter;
}

DropoutCase::DropoutCase(Trial& trial, double p, int64_t batch, int64_t sequence_length_)
    : sequence_length(sequence_length_) {
  for (int64_t i = 0; i < batch; ++i) sample_ids.push_back(trial.random.below(1000) + i * ((int64_t{1} << 33) + 7));
  dropout.p = p;
  dropout.key = {static_cast<uint32_t>(trial.random.next()), static_cast<uint32_t>(trial.random.next())};
  dropout.sample_ids = Trial::pointer<const int64_t>(trial.input_array(sample_ids));
}

double DropoutCase::factor(int64_t row, int64_t column) const {
  if (dropout.p == 0) return 1;
  const auto sample = static_cast<uint64_t>(sample_ids.at(static_cast<size_t>(row / sequence_length)));
  const auto words = reference_philox({static_cast<uint32_t>(column / 4), static_cast<uint32_t>(row % sequence_length),
                                       static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                                      {dropout.key.k0, dropout.key.k1});
  const bool dropped = words[static_cast<size_t>(column % 4)] < static_cast<uint32_t>(dropout.p * 4294967296.0);
  return dropped ? 0 : 1 / (1 - dropout.p);
}

double difference_from_numeric(const std::function<double(const std::vector<double>&)>& function,
                               const std::vector<double>& x, const std::vector<double>& gradient) {
  constexpr double step = 1e-5;
  double largest = 1;
  for (const double value : gradient) largest = std::max(largest, std::abs(value));
  double difference = 0;
  std::vector<double> moved = x;
  for (size_t i = 0; i < x.size(); ++i) {
    moved[i] = x[i] + step;
    const double above = function(moved);
    moved[i] = x[i] - step;
    const double below = function(moved);
    moved[i] = x[i];
    difference = std::max(difference, std::abs((above - below) / (2 * step) - gradient.at(i)));
  }
  return difference / largest;
}

}  // namespace gptrain::ops_test
