#include "data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "data/permutation.h"

namespace gptrain {
namespace {

// Sites of RandomUse::data_order. Part of what makes a run reproducible: never renumber them.
constexpr uint32_t cycle_site = 0;
constexpr uint32_t source_site = 1;

int64_t permute(bool shuffle, PhiloxKey key, int64_t tweak, int64_t size, int64_t index) {
  if (!shuffle) return index;
  const Permutation permutation(key, static_cast<uint64_t>(tweak), static_cast<uint64_t>(size));
  return static_cast<int64_t>(permutation(static_cast<uint64_t>(index)));
}

}  // namespace

std::vector<int64_t> round_to_slots(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> slots(weights.size());
  std::vector<double> remainders(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = weights[i] / sum * static_cast<double>(slots_per_cycle);
    slots[i] = static_cast<int64_t>(std::floor(exact));
    remainders[i] = exact - std::floor(exact);
  }

  std::vector<size_t> by_remainder(weights.size());
  std::iota(by_remainder.begin(), by_remainder.end(), size_t{0});
  std::stable_sort(by_remainder.begin(), by_remainder.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  // Rounding of the division could make the floors add up to one too many or leave one more than there are sources.
  int64_t left = slots_per_cycle - std::accumulate(slots.begin(), slots.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % by_remainder.size(), --left) ++slots[by_remainder[i]];
  for (; left < 0; ++left) --*std::max_element(slots.begin(), slots.end());

  for (int64_t& own : slots) {
    if (own > 0) continue;
    --*std::max_element(slots.begin(), slots.end());
    own = 1;
  }
  return slots;
}

SampleOrder::SampleOrder(std::span<const int64_t> slots, std::vector<int64_t> samples, uint64_t seed, bool shuffle)
    : slots_(slots.begin(), slots.end()), samples_(std::move(samples)), cycle_(slots_per_cycle), shuffle_(shuffle) {
  std::vector<int64_t> slot_ends(slots.size());
  std::partial_sum(slots.begin(), slots.end(), slot_ends.begin());
  const PhiloxKey cycle_key = random_key(seed, RandomUse::data_order, 0, cycle_site);
  std::vector<uint16_t> owned(slots.size(), 0);
  for (int64_t position = 0; position < slots_per_cycle; ++position) {
    // Sources are interleaved without shuffle too. Otherwise one source could give all of the first 65,536 samples.
    const int64_t slot = permute(true, cycle_key, 0, slots_per_cycle, position);
    const auto source =
        static_cast<size_t>(std::upper_bound(slot_ends.begin(), slot_ends.end(), slot) - slot_ends.begin());
    cycle_[static_cast<size_t>(position)] = {static_cast<uint16_t>(source), owned[source]++};
  }
  for (uint32_t source = 0; source < slots.size(); ++source) {
    source_keys_.push_back(random_key(seed, RandomUse::data_order, source, source_site));
  }
}

SampleLocation SampleOrder::locate(int64_t sample) const {
  const Position& position = cycle_[static_cast<size_t>(sample % slots_per_cycle)];
  const size_t source = position.source;
  const int64_t ordinal = sample / slots_per_cycle * slots_[source] + position.rank;
  const int64_t samples = samples_[source];
  const int64_t epoch = ordinal / samples;
  return {source, epoch, permute(shuffle_, source_keys_[source], epoch, samples, ordinal % samples)};
}

std::vector<int64_t> SampleOrder::taken_by(int64_t num_samples) const {
  const int64_t whole_cycles = num_samples / slots_per_cycle;
  std::vector<int64_t> taken = slots_;
  for (int64_t& own : taken) own *= whole_cycles;
  for (int64_t position = 0; position < num_samples % slots_per_cycle; ++position) {
    ++taken[cycle_[static_cast<size_t>(position)].source];
  }
  return taken;
}

}  // namespace gptrain
