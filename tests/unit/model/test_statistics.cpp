// Places of declared statistics in their block, and the passes that collect them.
#include <array>
#include <cstring>
#include <vector>

#include "catch.h"
#include "model/statistics.h"

using namespace gptrain;

TEST_CASE("sums of a step lie side by side, largest values behind them") {
  const StatisticsLayout layout(
      {{"largest", StatisticKind::largest, 3}, {"load", StatisticKind::sum, 40}, {"drops", StatisticKind::sum}});
  CHECK(layout.num_sums() == 41);
  CHECK(layout.bytes() == 512 + 256);
  alignas(256) std::array<std::byte, 768> block{};
  const std::vector<std::byte> values = layout.initial_values();
  REQUIRE(values.size() == 512 + 12);
  std::memcpy(block.data(), values.data(), values.size());
  CHECK(layout.find("load", block.data()).count() == 40);
  CHECK(layout.find("drops", block.data()).data == block.data() + 320);
  CHECK(*layout.find("drops", block.data()).as<double>() == 0);
  CHECK(layout.find("largest", block.data()).as<float>()[2] < -1e38F);
  CHECK_FALSE(layout.find("no such", block.data()).given());
  const auto reductions = layout.reductions(block.data());
  REQUIRE(reductions.size() == 2);
  CHECK((reductions[0].op == ReduceOp::sum && reductions[0].values.count() == 41));
  CHECK((reductions[1].op == ReduceOp::max && reductions[1].values.count() == 3));
  std::vector<double> sums(41);
  sums[40] = 7;
  CHECK(layout.part_of("drops", sums).front() == 7);
  CHECK(layout.part_of("largest", sums).empty());
  CHECK(StatisticsLayout().bytes() == 0);
  CHECK(StatisticsLayout().reductions(nullptr).empty());
}

TEST_CASE("a pass that runs again adds to no sum, but may raise a largest value") {
  const StatisticsLayout layout({{"load", StatisticKind::sum}, {"largest", StatisticKind::largest}});
  alignas(256) std::array<std::byte, 512> block{};
  CHECK_FALSE(StepStatistics{}.find("load").given());
  const StepStatistics first{.layout = &layout, .block = block.data()};
  CHECK(first.find("load").given());
  const StepStatistics again{.layout = &layout, .block = block.data(), .first_pass = false};
  CHECK_FALSE(again.find("load").given());
  CHECK(again.find("largest").given());
}
