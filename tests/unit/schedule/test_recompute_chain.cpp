// The optimal schedule of a chain, compared with all persistent schedules, and the memory of every schedule.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "catch.h"
#include "play_chain.h"
#include "schedule/recompute_chain.h"

using namespace gptrain;
using namespace gptrain::testing;

namespace {

using Visit = std::function<void()>;

// Enumerates all persistent schedules of a chain; with `copies` also all possible offloads.
class Schedules {
 public:
  explicit Schedules(const Chain& chain, bool copies = false)
      : chain_(chain), copies_(copies), choices_(chain.units.size()) {}

  // Calls body(choices) for each.
  template <typename Body>
  void for_each(const Body& body) {
    forward(0, [&] { body(choices_); });
  }

 private:
  int32_t size() const { return static_cast<int32_t>(chain_.units.size()); }
  UnitChoice& choice(int32_t unit) { return choices_[static_cast<size_t>(unit)]; }
  const ChainUnit& unit(int32_t i) const { return chain_.units[static_cast<size_t>(i)]; }

  void forward(int32_t first, const Visit& visit) {
    if (first == size()) return visit();
    std::vector<OffloadedPart> parts = {OffloadedPart::none};
    if (copies_ && unit(first).copy_seconds >= 0) parts.push_back(OffloadedPart::record);
    for (const OffloadedPart part : parts) {
      choice(first) = {.offload = {part}};
      forward(first + 1, visit);
      if (unit(first).part_bytes >= 0) {
        choice(first) = {true, first, {part}};
        forward(first + 1, visit);
      }
      choice(first) = {};
      for (int32_t last = first; last < size() && !unit(last).always_saved; ++last) {
        forward(last + 1, [&, last] {
          recompute(first, last, first, [&] {
            choice(first).offload.part = part == OffloadedPart::none ? part : OffloadedPart::input;
            visit();
            choice(first).offload.part = OffloadedPart::none;
          });
        });
      }
    }
  }

  // Continues a pass that began with `begin`, has reached the input of `first`, and goes on to `last`.
  void recompute(int32_t first, int32_t last, int32_t begin, const Visit& visit) {
    if (first == last) {
      choice(last) = {false, begin};
      return visit();
    }
    choice(first) = {};
    recompute(first + 1, last, begin, visit);
    if (unit(first).part_bytes >= 0) {
      choice(first) = {true, first};
      recompute(first + 1, last, begin, visit);
      choice(first) = {};
    }
    for (int32_t split = first; split < last; ++split)
      recompute(split + 1, last, begin, [&, split] { recompute(first, split, first, visit); });
  }

  const Chain& chain_;
  const bool copies_;
  UnitChoices choices_;
};

double priced_seconds(const Chain& chain, const UnitChoices& choices, double price) {
  double seconds = recompute_seconds(chain, choices);
  for (size_t i = 0; i < choices.size(); ++i)
    seconds += price * chain.units[i].copy_seconds * static_cast<double>(offloaded_bytes(chain, choices, i));
  return seconds;
}

Chain random_chain(std::mt19937& random, int32_t units) {
  const auto number = [&random](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
  };
  Chain chain{.units = std::vector<ChainUnit>(static_cast<size_t>(units)),
              .gradient_bytes = number(2),
              .in_flight = 1 + number(3) / 2};
  const bool has_parts = units <= 6 && number(1) == 1;
  for (ChainUnit& unit : chain.units) {
    unit = {.output_bytes = 1 + number(4),
            .saved_bytes = number(20),
            .backward_bytes = chain.gradient_bytes + number(5),
            .forward_seconds = 1 + static_cast<double>(number(20)),
            .saved_seconds = static_cast<double>(number(15))};
    if (!has_parts || number(1) == 0) continue;
    unit.part_bytes = number(12);
    unit.rest_bytes = number(12);
    unit.rest_seconds = static_cast<double>(number(6));
  }
  chain.units.back().always_saved = number(1) == 1;
  if (chain.units.back().always_saved) chain.units.back().part_bytes = -1;
  return chain;
}

int64_t most_bytes(const Chain& chain) { return peak_bytes(chain, UnitChoices(chain.units.size())); }

}  // namespace

TEST_CASE("the schedule of a chain is the best of all persistent ones, and takes no more than its budget") {
  std::mt19937 random(1);
  int feasible = 0;
  int num_recomputed = 0;
  for (int i = 0; i < 500; ++i) {
    const int32_t units = i % 50 == 0 ? 8 : i % 25 == 0 ? 7 : 1 + i % 6;
    const Chain chain = random_chain(random, units);
    const int64_t budget = static_cast<int64_t>(random() % static_cast<uint64_t>(most_bytes(chain) + 2));
    REQUIRE(budget <= 500);  // so that pieces are single bytes
    double least = std::numeric_limits<double>::infinity();
    Schedules(chain).for_each([&](const UnitChoices& choices) {
      if (peak_bytes(chain, choices) <= budget) least = std::min(least, recompute_seconds(chain, choices));
    });
    const auto found = ChainSolver(chain, budget).best(budget);
    INFO("chain " << i << " of " << units << " units, budget " << budget);
    REQUIRE(found.has_value() == std::isfinite(least));
    if (!found) continue;
    REQUIRE(peak_bytes(chain, *found) <= budget);
    REQUIRE(recompute_seconds(chain, *found) == least);
    ++feasible;
    num_recomputed += least > 0 ? 1 : 0;
  }
  CHECK(feasible > 150);
  CHECK(num_recomputed > 100);
}

TEST_CASE("with a price on each byte that is copied the schedule is the best of all with all that may be offloaded") {
  std::mt19937 random(3);
  int offloaded = 0, beside_again = 0, inputs = 0;
  for (int i = 0; i < 300; ++i) {
    const int32_t units = i % 60 == 0 ? 6 : 1 + i % 5;
    Chain chain = random_chain(random, units);
    chain.input_bytes = static_cast<int64_t>(random() % 5);
    for (ChainUnit& unit : chain.units) {
      unit.copy_seconds = unit.always_saved || random() % 4 == 0 ? -1 : static_cast<double>(random() % 4);
      if (i % 2 == 0) continue;
      // If inputs are the largest and recomputing units takes little time, only inputs are copied.
      unit.output_bytes *= 3;
      unit.forward_seconds = unit.saved_seconds = 1;
    }
    const auto most = static_cast<uint64_t>(most_bytes(chain));
    const int64_t budget = static_cast<int64_t>(most / 4 + random() % (most / 2 + 2));
    const double price = static_cast<double>(random() % 5) / 8;
    double least = std::numeric_limits<double>::infinity();
    Schedules(chain, true).for_each([&](const UnitChoices& choices) {
      if (peak_bytes(chain, choices) <= budget) least = std::min(least, priced_seconds(chain, choices, price));
    });
    const auto found = ChainSolver(chain, budget).best(budget, price);
    INFO("chain " << i << " of " << units << " units, budget " << budget << ", price " << price);
    REQUIRE(found.has_value() == std::isfinite(least));
    if (!found) continue;
    REQUIRE(peak_bytes(chain, *found) <= budget);
    REQUIRE(priced_seconds(chain, *found, price) == least);
    const auto num = [&](OffloadedPart part) {
      return std::count_if(found->begin(), found->end(), [&](const UnitChoice& c) { return c.offload.part == part; });
    };
    offloaded += num(OffloadedPart::record) > 0 ? 1 : 0;
    inputs += num(OffloadedPart::input) > 0 ? 1 : 0;
    beside_again += num(OffloadedPart::record) > 0 && recompute_seconds(chain, *found) > 0 ? 1 : 0;
  }
  CHECK(offloaded > 50);
  CHECK(inputs > 5);
  CHECK(beside_again > 20);
}

TEST_CASE(
    "the schedule of a long chain is no slower than every n-th unit run again, and fits where the bytes are in "
    "pieces") {
  std::mt19937 random(2);
  for (int i = 0; i < 6; ++i) {
    Chain chain = random_chain(random, 20);
    chain.in_flight = 1 + i % 2;
    ChainSolver solver(chain, 1000, 1000);
    for (const int32_t interval : {1, 2, 3, 5, 10}) {
      UnitChoices fixed(chain.units.size());
      for (int32_t unit = 0; unit < 20; unit += interval)
        if (!chain.units[static_cast<size_t>(unit)].always_saved)
          fixed[static_cast<size_t>(unit)].recompute_from = unit;
      const int64_t budget = peak_bytes(chain, fixed);
      REQUIRE(budget <= 1000);
      const auto found = solver.best(budget);
      REQUIRE(found);
      CHECK(recompute_seconds(chain, *found) <= recompute_seconds(chain, fixed));
      CHECK(peak_bytes(chain, *found) <= budget);
      const auto rounded = ChainSolver(chain, budget, 50).best(budget);
      if (rounded) CHECK(peak_bytes(chain, *rounded) <= budget);
    }
  }
}

TEST_CASE("with ever less memory a chain of equal units is run again from its start, by more and more passes") {
  Chain chain{.units = std::vector<ChainUnit>(16)};
  for (ChainUnit& unit : chain.units)
    unit = {.output_bytes = 1, .saved_bytes = 10, .backward_bytes = 2, .forward_seconds = 1, .saved_seconds = 1};
  // The last unit's own need, and one more stream for each output that a first pass keeps.
  const auto seconds = [&](int64_t budget) {
    const auto found = ChainSolver(chain, budget).best(budget);
    return found ? recompute_seconds(chain, *found) : -1;
  };
  CHECK(seconds(most_bytes(chain)) == 0);
  CHECK(seconds(most_bytes(chain) - 1) == 1);
  CHECK(seconds(27) == 15);           // the last unit's data still exist when its backward begins
  CHECK(seconds(13) == 15 * 16 / 2);  // for each unit except the last, all units before it
  CHECK(seconds(12) == -1);
}
