#include <cstdint>
#include <set>
#include <vector>

#include "data/dataset.h"
#include "data/left_out_samples.h"
#include "support.h"

namespace gptrain {
namespace {

using test::write_counting_tokens;

TEST_CASE("Samples that are left out have no number, whatever their ranges look like") {
  const LeftOutSamples left_out({{7, 2}, {0, 1}, {3, 2}, {4, 3}, {20, 1}});
  CHECK(left_out.ranges() == std::vector<SampleRange>{{0, 1}, {3, 6}, {20, 1}});
  const std::set<int64_t> out = {0, 3, 4, 5, 6, 7, 8, 20};
  int64_t sample = 0;
  for (int64_t index = 0; index < 30; ++index) {
    CHECK(left_out.before(index) == std::distance(out.begin(), out.lower_bound(index)));
    if (out.contains(index)) continue;
    CHECK(left_out.position_of(sample) == index);
    ++sample;
  }
  CHECK(LeftOutSamples().position_of(5) == 5);
  CHECK(LeftOutSamples().before(5) == 0);
  CHECK(join({{1, 2}}, {{3, 1}, {9, 1}}) == std::vector<SampleRange>{{1, 3}, {9, 1}});
}

std::vector<int32_t> firsts_of(const Dataset& data, int64_t count) {
  std::vector<int32_t> firsts;
  for (int64_t sample = 0; sample < count; ++sample) {
    std::vector<int32_t> tokens(4), targets(4);
    data.read(sample, tokens.data(), targets.data());
    firsts.push_back(tokens[0]);
  }
  return firsts;
}

TEST_CASE("A dataset without some samples gives the others in their order") {
  const TemporaryFolder folder;
  write_counting_tokens(folder / "a", 0, 4 * 40 + 1);
  write_counting_tokens(folder / "b", 1000, 4 * 10 + 1);
  const std::vector<DataSource> sources = {{folder / "a", 3}, {folder / "b", 1}};
  Dataset data(sources, 4, 60000, 5, true);
  std::vector<int32_t> expected = firsts_of(data, 60);
  data.leave_out(LeftOutSamples({{10, 5}, {30, 1}}));
  expected.erase(expected.begin() + 30);
  expected.erase(expected.begin() + 10, expected.begin() + 15);
  CHECK(firsts_of(data, 54) == expected);
  // The report counts only samples that are used.
  for (const int64_t seen : {0, 8, 12, 25, 26, 54}) {
    int64_t of_b = 0;
    for (int64_t i = 0; i < seen; ++i) of_b += expected[static_cast<size_t>(i)] >= 1000 ? 1 : 0;
    const auto report = data.report(seen);
    CHECK(report[1].taken == of_b);
    CHECK(report[0].taken == seen - of_b);
  }
  data.leave_out({});
  CHECK(firsts_of(data, 11)[10] != expected[10]);
}

TEST_CASE("A source that ends is used up sooner where samples are left out") {
  const TemporaryFolder folder;
  write_counting_tokens(folder / "a", 0, 4 * 40 + 1);
  Dataset data({{.path = folder / "a", .max_epochs = 2}}, 4, 60000, 5, true);
  CHECK(data.num_samples() == 80);
  data.leave_out(LeftOutSamples({{70, 20}, {3, 4}}));
  CHECK(data.num_samples() == 66);
}

}  // namespace
}  // namespace gptrain
