// Experts as units of their own, and the ways of rows to the ranks that hold them.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "catch.h"
#include "model/expert_spread.h"
#include "model/spec/layout.h"
#include "model_fixture.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::small_config;

TEST_CASE("experts apart are the same tensors, each whole on one rank of a group") {
  const ModelConfig model =
      small_config(Family::llama, {R"(model.moe={"experts":6,"top_k":2,"ffn_hidden_size":64,"first":1})",
                                   "model.hidden_size=48", "model.num_heads=4"})
          .model;
  const ModelSpec in_blocks = make_spec(model), in_units = make_spec(model, true);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorSpec& tensor : in_blocks.tensors) shapes[tensor.name] = tensor.shape;
  CHECK(in_units.tensors.size() == shapes.size());
  for (const TensorSpec& tensor : in_units.tensors) {
    CHECK(shapes.at(tensor.name) == tensor.shape);
    CHECK((in_units.units[static_cast<size_t>(tensor.unit)].kind == UnitKind::experts) == (tensor.expert >= 0));
  }
  CHECK(static_cast<int64_t>(in_units.units.size()) == model.num_layers + 2 + model.num_layers - 1);
  CHECK(in_units.units[1].experts == -1);
  CHECK(in_units.units[static_cast<size_t>(in_units.units[2].experts)].layer == 1);
  std::map<std::string, int> holders;
  for (int64_t rank = 0; rank < 3; ++rank) {
    const std::vector<TensorShard> shards = shard_tensors(in_units, {2, 1}, {3, rank});
    for (size_t i = 0; i < shards.size(); ++i) {
      const TensorSpec& tensor = in_units.tensors[i];
      if (tensor.expert < 0) continue;
      holders[tensor.name] += shards[i].any_owned() ? 1 : 0;
      CHECK(shards[i].count() == (tensor.expert / 2 == rank ? tensor.count() : 0));
    }
  }
  CHECK(std::all_of(holders.begin(), holders.end(), [](const auto& holder) { return holder.second == 1; }));
}

namespace {

// Rows of all ranks of a group, which choose experts by a rule.
struct Group {
  ExpertSpread spread;
  std::vector<int32_t> starts;

  Group(const ExpertSpread& of, const std::vector<std::vector<int32_t>>& counts) : spread(of) {
    for (const std::vector<int32_t>& of_rank : counts) {
      starts.push_back(0);
      for (const int32_t count : of_rank) starts.push_back(starts.back() + count);
    }
  }
};

using Assignment = std::pair<int64_t, int64_t>;  // rank and place

// The copies that a rank receives, in their order.
std::vector<Assignment> received(const Group& group, int64_t to) {
  std::vector<Assignment> assignments;
  group.spread.each_sender(group.starts, to, [&](int64_t from, ExpertSpread::Range range) {
    for (int64_t i = 0; i < range.count; ++i) assignments.emplace_back(from, range.first + i);
  });
  return assignments;
}

}  // namespace

TEST_CASE("rows of all senders lie by expert, and every row comes once") {
  // `pairs`: four ranks; ranks 0 and 1 have the same rows, and so have 2 and 3; each of them sends a half. `plain`: two
  // ranks with six experts.
  const Group pairs({.ranks = 4, .experts = 4, .shares = 2, .bound = 100},
                    {{3, 0, 5, 2}, {3, 0, 5, 2}, {1, 4, 0, 7}, {1, 4, 0, 7}});
  const Group plain({.ranks = 2, .experts = 6, .bound = 100}, {{3, 0, 2, 4, 1, 0}, {0, 5, 1, 0, 0, 2}});
  for (const Group* group : {&pairs, &plain}) {
    const ExpertSpread& spread = group->spread;
    std::set<Assignment> all;
    size_t rows = 0;
    for (int64_t to = 0; to < spread.ranks; ++to) {
      const std::vector<Assignment> assignments = received(*group, to);
      RowArrangement arrangement(spread);
      arrangement.arrange(group->starts, to);
      std::vector<int32_t> order, received_order;
      const auto add_to = [](std::vector<int32_t>& numbers) {
        return [&numbers](int32_t first, int32_t count) {
          for (int32_t i = 0; i < count; ++i) numbers.push_back(first + i);
        };
      };
      arrangement.each_number(add_to(order));
      arrangement.each_row(add_to(received_order));
      REQUIRE(order.size() == assignments.size());
      REQUIRE(arrangement.offsets().back() == static_cast<int32_t>(assignments.size()));
      for (size_t row = 0; row < order.size(); ++row) {
        CHECK(received_order[static_cast<size_t>(order[row])] == static_cast<int32_t>(row));
        const auto [from, row_of_sender] = assignments[static_cast<size_t>(order[row])];
        const int32_t* const starts = group->starts.data() + from * (spread.experts + 1);
        const auto expert = std::upper_bound(starts, starts + spread.experts + 1, row_of_sender) - starts - 1;
        const auto own = static_cast<size_t>(expert - to * spread.own_experts());
        CHECK(static_cast<int32_t>(row) >= arrangement.offsets().at(own));
        CHECK(static_cast<int32_t>(row) < arrangement.offsets().at(own + 1));
        // Ranks with the same rows have the same places.
        all.insert({from / spread.shares, row_of_sender});
      }
      rows += assignments.size();
    }
    CHECK(all.size() == rows);
    CHECK(rows == static_cast<size_t>(spread.shares == 2 ? 22 : 18));
  }
}

TEST_CASE("senders without room send less, and the rows that were asked for are counted") {
  const Group group({.ranks = 2, .experts = 2, .bound = 5}, {{4, 1}, {3, 2}});
  CHECK(received(group, 0) == std::vector<Assignment>{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 0}});
  CHECK(group.spread.each_sender(group.starts, 0, [](int64_t, ExpertSpread::Range) {}) == 7);
  CHECK(received(group, 1).size() == 3);
}
