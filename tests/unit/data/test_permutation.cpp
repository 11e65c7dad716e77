#include <cmath>
#include <map>
#include <vector>

#include "catch.h"
#include "data/permutation.h"

namespace gptrain {
namespace {

std::vector<uint64_t> image(PhiloxKey key, uint64_t tweak, uint64_t size) {
  const Permutation permutation(key, tweak, size);
  std::vector<uint64_t> values;
  for (uint64_t i = 0; i < size; ++i) values.push_back(permutation(i));
  return values;
}

TEST_CASE("A permutation hits every index once") {
  for (const uint64_t size : {1U, 2U, 3U, 4U, 5U, 7U, 63U, 64U, 65U, 1000U, 65535U, 65536U, 65537U}) {
    for (const uint32_t key : {0U, 1U, 0xffffffffU}) {
      std::vector<int> hits(size);
      for (const uint64_t value : image({key, 7}, 3, size)) {
        REQUIRE(value < size);
        ++hits[value];
      }
      CHECK(std::vector<int>(size, 1) == hits);
    }
  }
}

TEST_CASE("Permutations differ by key and by tweak") {
  const auto first = image({1, 2}, 0, 1000);
  CHECK(first == image({1, 2}, 0, 1000));
  CHECK(first != image({2, 2}, 0, 1000));
  CHECK(first != image({1, 3}, 0, 1000));
  CHECK(first != image({1, 2}, 1, 1000));
  CHECK(first != image({1, 2}, uint64_t{1} << 32, 1000));
}

TEST_CASE("All orders of a few items come equally often") {
  for (const uint64_t size : {2U, 3U, 4U}) {
    std::map<std::vector<uint64_t>, int> times;
    constexpr int num_keys = 24000;
    for (uint32_t key = 0; key < num_keys; ++key) ++times[image({key, 1}, 0, size)];
    const size_t num_orders = size == 2 ? 2 : size == 3 ? 6 : 24;
    REQUIRE(times.size() == num_orders);
    const double expected = num_keys / static_cast<double>(num_orders);
    for (const auto& [order, count] : times) CHECK(std::abs(count - expected) < 5 * std::sqrt(expected));
  }
}

TEST_CASE("Neighbours do not stay neighbours") {
  const auto values = image({5, 6}, 0, 65536);
  double sum = 0;
  int adjacent = 0;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    const double distance = std::abs(static_cast<double>(values[i + 1]) - static_cast<double>(values[i]));
    sum += distance;
    if (distance == 1) ++adjacent;
  }
  CHECK(sum / 65535 == Approx(65536.0 / 3).epsilon(0.01));  // the mean distance of two random points in an interval
  CHECK(adjacent < 15);                                     // two are expected
}

TEST_CASE("A permutation of 2^63 stays in range and does not collide on a sample") {
  constexpr uint64_t size = uint64_t{1} << 63;
  const Permutation permutation({1, 2}, 0, size);
  std::map<uint64_t, uint64_t> seen;
  for (uint64_t i = 0; i < 2000; ++i) {
    const uint64_t value = permutation(i < 1000 ? i : size - i);
    CHECK(value < size);
    CHECK(seen.emplace(value, i).second);
  }
}

}  // namespace
}  // namespace gptrain
