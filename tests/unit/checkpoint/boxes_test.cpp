#include "checkpoint/boxes.h"

#include <algorithm>
#include <random>

#include "catch.h"
#include "helpers.h"

using namespace gptrain;
using namespace checkpoint_test;

TEST_CASE("Shapes: counts that do not fit are refused", "[boxes]") {
  CHECK(num_elements({}) == 1);
  CHECK(num_elements({3, 0, 5}) == 0);
  CHECK(num_elements({1 << 20, 1 << 20, 1 << 20}) == int64_t{1} << 60);
  CHECK_FALSE(num_elements({int64_t{1} << 32, int64_t{1} << 32}));
  CHECK_FALSE(num_elements({2, -1}));
  CHECK(format_shape({768, 2304}) == "[768, 2304]");
  CHECK(format_shape({}) == "[]");
}

TEST_CASE("A box lies inside its tensor or does not", "[boxes]") {
  CHECK(is_inside({{0, 0}, {4, 5}}, {4, 5}));
  CHECK(is_inside({{4, 0}, {0, 5}}, {4, 5}));
  CHECK(is_inside({{}, {}}, {}));
  CHECK_FALSE(is_inside({{1, 0}, {4, 5}}, {4, 5}));
  CHECK_FALSE(is_inside({{-1, 0}, {2, 5}}, {4, 5}));
  CHECK_FALSE(is_inside({{0}, {4}}, {4, 5}));
  CHECK_FALSE(is_inside({{INT64_MAX, 0}, {INT64_MAX, 1}}, {4, 5}));
}

TEST_CASE("Intersections and overlaps", "[boxes]") {
  const auto shared = intersect({{0, 2}, {3, 4}}, {{2, 0}, {5, 3}});
  REQUIRE(shared);
  CHECK(shared->offset == std::vector<int64_t>{2, 2});
  CHECK(shared->shape == std::vector<int64_t>{1, 1});
  CHECK_FALSE(intersect({{0, 0}, {2, 2}}, {{2, 0}, {2, 2}}));
  CHECK(intersect({{}, {}}, {{}, {}}));

  CHECK_FALSE(find_overlap({{{0, 0}, {2, 2}}, {{2, 0}, {2, 2}}, {{0, 2}, {4, 1}}}));
  CHECK(find_overlap({{{0, 0}, {2, 2}}, {{2, 0}, {2, 2}}, {{1, 1}, {1, 1}}}) == std::pair<size_t, size_t>{0, 2});
  CHECK(find_overlap({{{}, {}}, {{}, {}}}) == std::pair<size_t, size_t>{0, 1});
  // A wide box that begins early overlaps one that begins much later.
  CHECK(find_overlap({{{5}, {1}}, {{0}, {9}}, {{20}, {2}}}) == std::pair<size_t, size_t>{0, 1});
}

TEST_CASE("overlaps of random boxes are those of all pairs") {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    const size_t dims = 1 + random() % 3;
    std::vector<Box> boxes(1 + random() % 6);
    for (Box& box : boxes) {
      for (size_t d = 0; d < dims; ++d) {
        box.offset.push_back(static_cast<int64_t>(random() % 6));
        box.shape.push_back(static_cast<int64_t>(random() % 4));
      }
    }
    bool overlap = false;
    for (size_t i = 0; i < boxes.size(); ++i)
      for (size_t j = i + 1; j < boxes.size(); ++j) overlap = overlap || intersect(boxes[i], boxes[j]);
    const auto found = find_overlap(boxes);
    REQUIRE(found.has_value() == overlap);
    if (found) CHECK(intersect(boxes[found->first], boxes[found->second]));
  }
}

TEST_CASE("BoxCopy copies what two random boxes share, whatever the pieces", "[boxes]") {
  Random random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> shape;
    for (int64_t dims = random_below(random, 5); dims > 0; --dims) shape.push_back(1 + random_below(random, 6));
    const Tensor tensor = make_tensor("t", shape, static_cast<uint32_t>(round));
    const auto sources = random_partition(random, shape, 5);
    const auto targets = random_partition(random, shape, 5);
    Parts source_parts;
    Parts expected;
    Parts copied;
    for (const Box& box : sources) add_part(source_parts, tensor, box);
    for (const Box& box : targets) {
      add_part(expected, tensor, box);
      add_empty_part(copied, tensor, box);
    }
    for (size_t s = 0; s < sources.size(); ++s) {
      const auto size = static_cast<int64_t>(source_parts.storage[s].size());
      for (size_t t = 0; t < targets.size(); ++t) {
        BoxCopy copy(sources[s], targets[t], DType::f32, copied.storage[t].data());
        for (int64_t at = 0; at < size;) {
          const int64_t n = std::min(size - at, 1 + random_below(random, 9));
          // Copies the piece, so that the address sanitizer notices reads beyond it.
          const std::vector<float> piece(source_parts.storage[s].begin() + at,
                                         source_parts.storage[s].begin() + at + n);
          copy.feed(at, piece.data(), n);
          at += n;
        }
        REQUIRE_FALSE(copy.pending());
      }
    }
    INFO("round " << round << ", shape " << format_shape(shape));
    REQUIRE(same_bits(expected, copied));
  }
}
