// A statistic that is counted in the passes of layers: every layout agrees on it, and on its maximum.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "ranks.h"

namespace test_statistics {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// Counts the rows of each block's passes, and raises the highest number of a block, as a layer would.
class RowCounter final : public ActionObserver {
 public:
  explicit RowCounter(const TrainingStep& step) : step_(step) {}

  bool before(const Action&) override { return true; }
  void after(const Action& action) override {
    if (action.kind != ActionKind::forward && !is_recomputation(action.kind)) return;
    const Unit& unit = step_.spec().units[static_cast<size_t>(action.unit)];
    if (unit.kind != UnitKind::block) return;
    StepStatistics statistics = step_.statistics();
    statistics.first_pass = !is_recomputation(action.kind);
    float& highest = *statistics.find("highest").as<float>();
    highest = std::max(highest, static_cast<float>(unit.layer));
    const StepDesign& design = step_.design();
    const Matrix rows = statistics.find("rows");
    // Without sequence parallelism tensor ranks have equal rows.
    if (!rows.given() || (design.tensor.rank > 0 && !design.sequence)) return;
    const int64_t shared_by = design.sequence ? design.tensor.size : 1;
    rows.as<double>()[unit.layer] += static_cast<double>(design.training_shape.rows() / shared_by);
  }

 private:
  const TrainingStep& step_;
};

void expect(bool condition) {
  if (!condition) throw std::logic_error("the ranks do not agree on a statistic");
}

struct Case {
  std::vector<std::string> overrides;
  int64_t ranks;
};

}  // namespace

TEST_CASE("all layouts agree on counted statistics, whatever is run again") {
  const std::vector<Case> cases = {
      {{}, 1},
      {{"batch.micro=2", "memory.recompute=block"}, 1},
      {{"batch.micro=2", "parallel.tensor=2"}, 2},
      {{"batch.micro=2", "parallel.tensor=2", "parallel.sequence=true", "memory.recompute=optimal"}, 2},
      {{"batch.micro=1", "parallel.pipeline=3", "parallel.zero=1"}, 6},
      {{"batch.micro=1", "parallel.zero=3", "memory.recompute=selective"}, 2},
  };
  for (const Case& layout : cases) {
    const RunConfig config = small_config(Family::llama, layout.overrides, layout.ranks);
    Wrapping wrapping;
    wrapping.statistics = {{"rows", StatisticKind::sum, config.model.num_layers},
                           {"highest", StatisticKind::largest},
                           {"unused", StatisticKind::sum, 2}};
    on_ranks(config, layout.ranks, nullptr, wrapping, [&](RankContext& rank) {
      RandomBatches batches(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
      RowCounter counter(rank.step);
      for (int i = 0; i < 2; ++i) {
        const std::vector<double> sums = rank.step.run(1e-3, batches, &counter).sums;
        const StatisticsLayout& declared = rank.step.design().statistics;
        const auto of_step = static_cast<double>(config.batch.global * config.model.sequence_length);
        for (const double rows : declared.part_of("rows", sums)) expect(rows == of_step);
        for (const double count : declared.part_of("unused", sums)) expect(count == 0);
        expect(declared.part_of("rows", sums).size() == 3 && sums.size() == 5);
        expect(*rank.step.statistics().find("highest").as<float>() == 2);
      }
      // The memory of statistics is planned.
      expect(rank.step.taken()[MemoryClass::state] == rank.step.design().memory.arenas[MemoryClass::state]);
    });
  }
}

}  // namespace test_statistics
