// Division by a product and a shift, at the edges of its range: no test has rows enough to come there.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "catch.h"
#include "kernels/divisor.h"

using namespace gptrain;

TEST_CASE("a divisor divides as the processor does, on both sides of 2^31 and of every multiple of it") {
  constexpr int64_t two31 = int64_t{1} << 31;
  std::vector<int64_t> values;
  for (int64_t value = 1; value <= 300; ++value) values.push_back(value);
  for (int bit = 8; bit <= 33; ++bit)
    for (const int64_t beside : {-1, 0, 1}) values.push_back((int64_t{1} << bit) + beside);
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) values.push_back(static_cast<int64_t>(random() % (uint64_t{1} << (1 + i % 33))) + 1);
  for (const int64_t value : values) {
    const Divisor divisor(value);
    std::vector<int64_t> numbers = {0,         1,           two31 - 2, two31 - 1, two31, two31 + 1, 2 * two31 - 1,
                                    2 * two31, 1000 * two31};
    // The last multiple below 2^31, where the error of the multiplier has grown most, and one in between.
    for (const int64_t quotient : {int64_t{1}, (two31 - 1) / value / 2, (two31 - 1) / value, two31 / value + 1})
      for (const int64_t beside : {-1, 0, 1}) numbers.push_back(std::max<int64_t>(0, quotient * value + beside));
    for (const int64_t number : numbers) {
      if (divisor.quotient(number) == number / value && divisor.remainder(number) == number % value) continue;
      FAIL(number << " / " << value << " is not " << divisor.quotient(number));
    }
  }
}
