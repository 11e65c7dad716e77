// Division by a product and a shift, at the limits of its range, which no test's number of rows reaches.
#include <cstdint>
#include <random>
#include <vector>

#include "catch.h"
#include "kernels/rows.h"

using namespace gptrain;

TEST_CASE("a divisor divides as the processor does, below 2^31") {
  std::vector<uint32_t> values = {INT32_MAX, INT32_MAX - 1, 50257, 50304};
  for (uint32_t value = 1; value <= 300; ++value) values.push_back(value);
  for (int bit = 8; bit <= 30; ++bit)
    for (const uint32_t one : {0U, 1U, 2U}) values.push_back((1U << bit) + one - 1);
  std::mt19937_64 random(1);
  for (int i = 0; i < 3000; ++i) values.push_back(static_cast<uint32_t>(random() % (uint64_t{1} << (1 + i % 31))) | 1U);
  for (const uint32_t value : values) {
    const Divisor divisor(value);
    std::vector<uint32_t> numbers = {0, 1, INT32_MAX - 1, INT32_MAX};
    // Around the last multiples, where the multiplier's error is largest.
    const uint32_t most = INT32_MAX / value;
    for (const uint32_t quotient : {1U, most / 2, most - (most > 1 ? 1 : 0), most}) {
      numbers.push_back(quotient * value);
      numbers.push_back(quotient * value - (quotient > 0 ? 1 : 0));
    }
    for (const uint32_t number : numbers) {
      const auto [quotient, remainder] = divisor.divide(number);
      if (quotient != number / value || remainder != number % value)
        FAIL(number << " / " << value << " is not " << quotient << ", rest " << remainder);
    }
  }
}

TEST_CASE("kernels refuse more rows than they can count") {
  CHECK_THROWS_AS(Divisor(int64_t{1} << 31), std::logic_error);
  CHECK_THROWS_AS(Divisor(-1), std::logic_error);
  CHECK_THROWS_AS(Rows<float>(Matrix(nullptr, DType::f32, most_rows + 1, 1)), std::logic_error);
  CHECK_NOTHROW(Rows<float>(Matrix(nullptr, DType::f32, most_rows, 1)));
  Dropout dropout;
  dropout.first_row = most_rows + 1;
  CHECK_THROWS_AS(DropoutMask(dropout, TokenRows::whole(7)), std::logic_error);
}
