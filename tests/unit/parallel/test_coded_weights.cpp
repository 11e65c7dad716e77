// Weights that travel in codes of 8 bits: errors, places within their buffer, and independence of the cut.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "catch.h"
#include "model/record.h"
#include "ops/backend.h"
#include "ops/block_codes.h"
#include "parallel/coded_weights.h"
#include "summing_rank.h"

namespace gptrain::coded_weights_test {
namespace {

constexpr auto guard = std::byte{0xA5};
constexpr size_t guard_bytes = 64;

// Encodes `elements` weights in pieces and decodes them; fails if memory behind the buffer changes.
std::vector<bf16> decoded(std::vector<bf16> weights, int64_t pieces) {
  const auto elements = static_cast<int64_t>(weights.size());
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const auto bytes = static_cast<size_t>(align_up(2 * elements) + CodedWeights::bytes_behind(elements));
  std::vector<std::byte> buffer(bytes + guard_bytes, guard);
  const CodedWeights coded(buffer.data(), elements);
  const int64_t of_piece = elements / pieces;
  for (int64_t first = 0; first < elements; first += of_piece)
    coded.encode(*backend, Matrix(weights.data() + first, DType::bf16, 1, of_piece), first);
  coded.decode(*backend);
  CHECK(std::all_of(buffer.begin() + static_cast<int64_t>(bytes), buffer.end(),
                    [](std::byte byte) { return byte == guard; }));
  std::memcpy(weights.data(), buffer.data(), static_cast<size_t>(2 * elements));
  return weights;
}

}  // namespace

TEST_CASE("decoded weights are within the error of their blocks' codes, however the unit is cut") {
  for (const int64_t blocks : {1, 2, 3, 6, 63, 66, 180, 1026}) {
    INFO(blocks << " blocks");
    std::vector<bf16> weights(static_cast<size_t>(blocks * code_block));
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto element = static_cast<int64_t>(i);
      const auto size = static_cast<float>(std::exp2(static_cast<double>(element / code_block % 9)));
      weights[i] = to_bf16(static_cast<float>(testing::hashed(element, 3, 1, 2)) * size);
    }
    const std::vector<bf16> found = decoded(weights, 1);
    double off = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      double largest = 0;
      const auto at = [&](const std::vector<bf16>& of, int64_t i) {
        return static_cast<double>(to_float(of[static_cast<size_t>(block * code_block + i)]));
      };
      for (int64_t i = 0; i < code_block; ++i) largest = std::max(largest, std::abs(at(weights, i)));
      for (int64_t i = 0; i < code_block; ++i) {
        // A decoded weight is rounded to bf16 as well.
        const double bound = largest / 254 * (1 + 1e-4) + std::abs(at(weights, i)) / 256 + largest / 254 / 256;
        const double error = std::abs(at(found, i) - at(weights, i));
        if (error > bound) FAIL("element " << i << " of block " << block << " is off by " << error / largest);
        off += error;
      }
    }
    CHECK(off > 0);
    for (const int64_t pieces : {2, 3})
      if (blocks % pieces == 0) {
        const std::vector<bf16> cut = decoded(weights, pieces);
        CHECK(std::memcmp(cut.data(), found.data(), 2 * cut.size()) == 0);
      }
  }
}

TEST_CASE("codes of weights take little memory beside the weights") {
  CHECK(CodedWeights::bytes_behind(128) <= 1024);
  for (const int64_t elements : {int64_t{1} << 16, int64_t{1} << 24})
    CHECK(static_cast<double>(CodedWeights::bytes_behind(elements)) < 0.064 * static_cast<double>(elements));
}

}  // namespace gptrain::coded_weights_test
