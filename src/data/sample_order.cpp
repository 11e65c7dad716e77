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
    : slot_starts_(slots.size() + 1),
      samples_(std::move(samples)),
      cycle_key_(random_key(seed, RandomUse::data_order, 0, cycle_site)),
      shuffle_(shuffle) {
  std::partial_sum(slots.begin(), slots.end(), slot_starts_.begin() + 1);
  for (uint32_t source = 0; source < slots.size(); ++source) {
    source_keys_.push_back(random_key(seed, RandomUse::data_order, source, source_site));
  }
}

int64_t SampleOrder::slot_of(int64_t sample) const {
  return permute(shuffle_, cycle_key_, sample / slots_per_cycle, slots_per_cycle, sample % slots_per_cycle);
}

size_t SampleOrder::source_of(int64_t slot) const {
  const auto after = std::upper_bound(slot_starts_.begin(), slot_starts_.end(), slot);
  return static_cast<size_t>(after - slot_starts_.begin()) - 1;
}

SampleLocation SampleOrder::locate(int64_t sample) const {
  const int64_t slot = slot_of(sample);
  const size_t source = source_of(slot);
  const int64_t slots = slot_starts_[source + 1] - slot_starts_[source];
  const int64_t ordinal = sample / slots_per_cycle * slots + slot - slot_starts_[source];
  const int64_t samples = samples_[source];
  const int64_t epoch = ordinal / samples;
  return {source, epoch, permute(shuffle_, source_keys_[source], epoch, samples, ordinal % samples)};
}

std::vector<int64_t> SampleOrder::taken_by(int64_t num_samples) const {
  const int64_t whole_cycles = num_samples / slots_per_cycle;
  std::vector<int64_t> taken(samples_.size());
  for (size_t i = 0; i < taken.size(); ++i) taken[i] = whole_cycles * (slot_starts_[i + 1] - slot_starts_[i]);
  for (int64_t sample = whole_cycles * slots_per_cycle; sample < num_samples; ++sample) {
    ++taken[source_of(slot_of(sample))];
  }
  return taken;
}

}  // namespace gptrain
