// "Same results" of DESIGN.md over tensor, sequence and ZeRO data parallelism: every layout against one rank.
#include <cstdio>
#include <fmt/format.h>
#include <set>
#include <string>
#include <vector>

#include "catch.h"
#include "layouts.h"

using namespace gptrain;
using namespace gptrain::testing;

namespace {

void compare_all(const std::vector<LayoutCase>& layouts) {
  fmt::print("{} layouts\n", layouts.size());
  fmt::print("{:<104} {:>8} {:<38} {:>8} {:>9} {:>9}\n", "layout", "moment", "of", "weight", "loss", "norm");
  for (const LayoutCase& layout : layouts) {
    INFO(layout.name());
    const Difference d = compare_with_one_rank(layout);
    fmt::print("{:<104} {:8.1e} {:<38} {:8.1e} {:9.1e} {:9.1e}\n", layout.name(), d.first_moment, d.moment_of, d.weight,
               d.loss, d.norm);
    CHECK(d.small());
  }
}

}  // namespace

TEST_CASE("first moments of a pairwise covering set of layouts") {
  const std::vector<LayoutCase> layouts = pairwise_covering(full_product());
  CHECK(layouts.size() <= 60);
  std::set<int64_t> world_sizes;
  for (const LayoutCase& layout : layouts) world_sizes.insert(layout.world_size());
  CHECK(world_sizes == std::set<int64_t>{1, 2, 3, 4, 5, 6, 8});
  compare_all(layouts);
}

TEST_CASE("first moments of every layout", "[.full]") { compare_all(full_product()); }
