#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "catch.h"
#include "data/sample_order.h"

namespace gptrain {
namespace {

std::vector<int64_t> slots_for(const std::vector<double>& weights) { return round_to_slots(weights); }

// Returns an order without phases, whose sources have these slots.
SampleOrder order_of(const std::vector<int64_t>& slots, std::vector<int64_t> samples, uint64_t seed, bool shuffle) {
  return {{{0, {slots.begin(), slots.end()}}}, std::move(samples), seed, shuffle};
}

TEST_CASE("Sample counts are exact where floats are not") {
  CHECK(samples_per_epoch(300'000'000'000, 4096) == 73'242'187);
  CHECK(samples_per_epoch(300'000'000'001 + 2047, 4096) == 73'242'187);
  CHECK(samples_per_epoch(73'242'188LL * 4096 + 1, 4096) == 73'242'188);
  CHECK(samples_per_epoch(9'000'000'000'000'000'000, 1) == 8'999'999'999'999'999'999);
  CHECK(samples_per_epoch(8, 8) == 0);
  CHECK(samples_per_epoch(9, 8) == 1);
  CHECK(samples_per_epoch(0, 8) == 0);
}

TEST_CASE("Weights are rounded to slots by largest remainder") {
  CHECK(slots_for({3}) == std::vector<int64_t>{65536});
  CHECK(slots_for({1, 1}) == std::vector<int64_t>{32768, 32768});
  CHECK(slots_for({1, 1, 1}) == std::vector<int64_t>{21846, 21845, 21845});        // a tie: the earlier source
  CHECK(slots_for({0.5, 0.3, 0.2}) == std::vector<int64_t>{32768, 19661, 13107});  // .0, .8, .2
  CHECK(slots_for({1e300, 3e300}) == std::vector<int64_t>{16384, 49152});
}

TEST_CASE("Every source has a slot, and the slots fill the cycle") {
  CHECK(slots_for({1, 1e-12, 1e-12}) == std::vector<int64_t>{65534, 1, 1});
  std::vector<double> weights;
  for (int i = 0; i < 300; ++i) weights.push_back(std::exp(-0.2 * i));
  const auto slots = round_to_slots(weights);
  CHECK(std::accumulate(slots.begin(), slots.end(), int64_t{0}) == slots_per_cycle);
  for (size_t i = 0; i < slots.size(); ++i) {
    CHECK(slots[i] >= 1);
    if (i > 0) CHECK(slots[i] <= slots[i - 1]);
  }
  CHECK(round_to_slots(std::vector<double>(65536, 0.1)) == std::vector<int64_t>(65536, 1));
}

TEST_CASE("A weight of 0 gets no slot, a small one does") {
  CHECK(slots_for({0, 1, 1e-12}) == std::vector<int64_t>{0, 65535, 1});
  CHECK(slots_for({1, 0, 1, 1}) == std::vector<int64_t>{21846, 0, 21845, 21845});
}

// Checks that a source, over all phases, yields its samples in order, epoch after epoch.
void check_ordinals(const SampleOrder& order, int64_t num_samples, const std::vector<int64_t>& samples) {
  std::vector<int64_t> taken(samples.size(), 0);
  for (int64_t n = 0; n < num_samples; ++n) {
    const SampleLocation location = order.locate(n);
    const int64_t ordinal = taken[location.source]++;
    REQUIRE(location.epoch * samples[location.source] + location.index == ordinal);
    REQUIRE(order.number_of(location.source, ordinal) == n);
  }
  CHECK(order.taken_by(num_samples) == taken);
}

TEST_CASE("Phases have weights of their own, and sources go on where they were") {
  const std::vector<int64_t> samples = {700, 900, 50};
  const SampleOrder order({{1000, {1, 0, 3}}, {70'000, {0, 1, 1}}, {0, {1, 1, 1}}}, samples, 7, false);
  CHECK(order.num_phases() == 3);
  CHECK(order.num_samples() == std::numeric_limits<int64_t>::max());
  CHECK(order.taken_by(1000)[1] == 0);
  CHECK(order.taken_by(70'000)[0] == order.taken_by(1000)[0]);
  check_ordinals(order, 75'000, samples);
}

TEST_CASE("A source that has given all it may is left out") {
  const std::vector<int64_t> samples = {300, 2000, 500};
  const SampleOrder order({{0, {1, 1, 1}}}, samples, 7, false, {600, 2000, 750});
  CHECK(order.num_samples() == 600 + 2000 + 750);
  CHECK(order.taken_by(order.num_samples()) == std::vector<int64_t>{600, 2000, 750});
  check_ordinals(order, order.num_samples(), samples);
  CHECK(order.number_of(0, 600) == std::nullopt);
  // Reading ahead past the end also finds samples.
  CHECK(order.locate(order.num_samples() + 70'000).source == 1);
  const SampleOrder unlimited({{0, {1, 1, 1}}}, samples, 7, true, {600, std::numeric_limits<int64_t>::max(), 750});
  CHECK(unlimited.num_samples() == std::numeric_limits<int64_t>::max());
  CHECK(unlimited.taken_by(100'000) == std::vector<int64_t>{600, 98'650, 750});
}

TEST_CASE("A cycle takes from each source its slots, each sample of an epoch once") {
  const std::vector<int64_t> slots = {40000, 25535, 1};
  const SampleOrder order = order_of(slots, {10000, 30000, 5}, 42, true);
  std::vector<std::multiset<int64_t>> seen(3);
  std::vector<int64_t> taken(3);
  for (int64_t n = 0; n < slots_per_cycle; ++n) {
    const SampleLocation location = order.locate(n);
    ++taken[location.source];
    seen[location.source].insert(location.index);
    if (location.source == 0) CHECK(location.epoch < 4);
  }
  CHECK(taken == slots);
  CHECK(order.taken_by(slots_per_cycle) == slots);
  for (int64_t i = 0; i < 10000; ++i) REQUIRE(seen[0].count(i) == 4);
  CHECK(std::set<int64_t>(seen[1].begin(), seen[1].end()).size() == 25535);  // less than an epoch: no repeats
}

TEST_CASE("An epoch that ends inside a cycle goes on in the next") {
  const std::vector<int64_t> slots = {3, 65533};
  const SampleOrder order = order_of(slots, {7, 1000}, 1, true);
  // Seven cycles of three slots are three epochs of seven samples.
  std::vector<std::set<int64_t>> epochs(3);
  for (int64_t n = 0; n < 7 * slots_per_cycle; ++n) {
    const SampleLocation location = order.locate(n);
    if (location.source == 0) CHECK(epochs.at(static_cast<size_t>(location.epoch)).insert(location.index).second);
  }
  for (const auto& epoch : epochs) CHECK(epoch.size() == 7);
}

TEST_CASE("Epochs of a source pass one after the other, however short the run") {
  const SampleOrder order = order_of(slots_for({3, 1}), {124, 50}, 9, true);
  std::vector<int64_t> taken(2);
  std::vector<std::set<int64_t>> epoch(2);
  for (int64_t n = 0; n < 700; ++n) {
    const SampleLocation location = order.locate(n);
    const size_t source = location.source;
    const int64_t samples = source == 0 ? 124 : 50;
    CHECK(location.epoch == taken[source] / samples);
    if (taken[source] % samples == 0) epoch[source].clear();
    CHECK(epoch[source].insert(location.index).second);
    ++taken[source];
  }
  CHECK(taken[0] + taken[1] == 700);
  CHECK(taken[0] > 2 * 124);
}

TEST_CASE("The order changes with seed, epoch and cycle, and only with those") {
  const std::vector<int64_t> slots = {32768, 32768};
  const auto sequence = [&](uint64_t seed, int64_t first) {
    const SampleOrder order = order_of(slots, {32768, 32768}, seed, true);
    std::vector<int64_t> values;
    for (int64_t n = first; n < first + 200; ++n) {
      const SampleLocation location = order.locate(n);
      values.push_back(static_cast<int64_t>(location.source) * slots_per_cycle + location.index);
    }
    return values;
  };
  CHECK(sequence(1, 0) == sequence(1, 0));
  CHECK(sequence(1, 0) != sequence(2, 0));
  CHECK(sequence(1, 0) != sequence(uint64_t{1} << 32 | 1, 0));
  CHECK(sequence(1, 0) != sequence(1, slots_per_cycle));
}

// Computed from the text of data/README.md by a program in another language. A change here changes every run.
TEST_CASE("The order is the documented one") {
  struct Known {
    int64_t sample;
    size_t source;
    int64_t epoch;
    int64_t index;
  };
  const SampleOrder order =
      order_of(std::vector<int64_t>{43691, 21845}, {1'000'000'000'039, 1000}, (uint64_t{1} << 40) + 7, true);
  for (const Known& known :
       {Known{.sample = 0, .source = 1, .epoch = 0, .index = 930},
        Known{.sample = 1, .source = 0, .epoch = 0, .index = 663'129'653'532},
        Known{.sample = 2, .source = 0, .epoch = 0, .index = 702'269'107'905},
        Known{.sample = 3, .source = 1, .epoch = 0, .index = 356},
        Known{.sample = 65535, .source = 0, .epoch = 0, .index = 93'712'732'778},
        Known{.sample = 65536, .source = 1, .epoch = 21, .index = 273},
        Known{.sample = 1'000'000'007, .source = 0, .epoch = 0, .index = 811'220'797'286},
        Known{.sample = (int64_t{1} << 40) + 12345, .source = 0, .epoch = 0, .index = 359'477'934'200}}) {
    const SampleLocation location = order.locate(known.sample);
    CHECK(location.source == known.source);
    CHECK(location.epoch == known.epoch);
    CHECK(location.index == known.index);
  }
}

TEST_CASE("Two sources of one size are shuffled differently") {
  const SampleOrder order = order_of(std::vector<int64_t>{32768, 32768}, {32768, 32768}, 3, true);
  std::vector<std::vector<int64_t>> indices(2);
  for (int64_t n = 0; n < 100; ++n) {
    const SampleLocation location = order.locate(n);
    indices[location.source].push_back(location.index);
  }
  CHECK(indices[0] != indices[1]);
}

TEST_CASE("Without shuffle each source is read in its own order, and the sources are mixed all the same") {
  const SampleOrder order = order_of(slots_for({1, 1}), {30, 1000}, 1, false);
  std::vector<int64_t> taken(2);
  for (int64_t n = 0; n < 200; ++n) {
    const SampleLocation location = order.locate(n);
    const int64_t samples = location.source == 0 ? 30 : 1000;
    CHECK(location.index == taken[location.source] % samples);
    CHECK(location.epoch == taken[location.source] / samples);
    ++taken[location.source];
  }
  CHECK(taken[0] > 60);
  CHECK(taken[1] > 60);
}

TEST_CASE("Any part of a shuffled cycle has the mixture's frequencies") {
  const auto slots = round_to_slots(std::vector<double>{0.7, 0.2, 0.1});
  const SampleOrder order = order_of(slots, {1000, 1000, 1000}, 11, true);
  const auto taken = order.taken_by(slots_per_cycle + 10000);
  for (size_t i = 0; i < slots.size(); ++i) {
    const double share = static_cast<double>(slots[i]) / slots_per_cycle;
    const double in_part = static_cast<double>(taken[i] - slots[i]);
    CHECK(std::abs(in_part - 10000 * share) < 5 * std::sqrt(10000 * share * (1 - share)));
  }
}

TEST_CASE("Large sample numbers do not overflow") {
  const std::vector<int64_t> slots = {65535, 1};
  const int64_t trillions = int64_t{1} << 61;
  const SampleOrder order = order_of(slots, {int64_t{1} << 60, 3}, 5, true);
  for (int64_t n = trillions; n < trillions + 1000; ++n) {
    const SampleLocation location = order.locate(n);
    CHECK(location.index >= 0);
    CHECK(location.index < (location.source == 0 ? int64_t{1} << 60 : 3));
    CHECK(location.epoch >= 0);
  }
  CHECK(order.taken_by(trillions)[1] == trillions / slots_per_cycle);
}

}  // namespace
}  // namespace gptrain
