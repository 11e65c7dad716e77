#include "data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "data/permutation.h"

namespace gptrain::inline data {
namespace {

// Sites of RandomUse::data_order. Never renumber them: they determine the results of a run.
constexpr uint32_t cycle_site = 0;
constexpr uint32_t source_site = 1;

constexpr int64_t no_end = std::numeric_limits<int64_t>::max();

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

  std::vector<size_t> by_remainder;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0) by_remainder.push_back(i);
  }
  std::stable_sort(by_remainder.begin(), by_remainder.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  // Rounding of the division could make the floors add up to one too many, or leave over one more than there are
  // sources.
  int64_t left = slots_per_cycle - std::accumulate(slots.begin(), slots.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % by_remainder.size(), --left) ++slots[by_remainder[i]];
  for (; left < 0; ++left) --*std::max_element(slots.begin(), slots.end());

  for (const size_t i : by_remainder) {
    if (slots[i] > 0) continue;
    --*std::max_element(slots.begin(), slots.end());
    slots[i] = 1;
  }
  return slots;
}

SampleOrder::SampleOrder(const std::vector<MixturePhase>& phases, std::vector<int64_t> samples, uint64_t seed,
                         bool shuffle, const std::vector<int64_t>& limits)
    : samples_(std::move(samples)),
      cycle_key_(random_key(seed, RandomUse::data_order, 0, cycle_site)),
      shuffle_(shuffle) {
  for (uint32_t source = 0; source < samples_.size(); ++source) {
    source_keys_.push_back(random_key(seed, RandomUse::data_order, source, source_site));
  }
  std::vector<int64_t> given(samples_.size(), 0);
  int64_t first = 0;
  for (size_t i = 0; i < phases.size();) {
    std::vector<double> weights = phases[i].weights;
    for (size_t source = 0; source < limits.size(); ++source) {
      if (given[source] >= limits[source]) weights[source] = 0;
    }
    const bool is_last = i + 1 == phases.size();
    if (std::none_of(weights.begin(), weights.end(), [](double weight) { return weight > 0; })) {
      // The phase's sources are used up; a later phase may have others.
      if (is_last) break;
      ++i;
      continue;
    }
    begin_phase(first, weights, given);
    const int64_t until = is_last ? no_end : phases[i].until_sample;
    const int64_t used_up = end_of_phase(limits);
    num_samples_ = std::min(until, used_up);
    if (num_samples_ == no_end) return;
    given = taken_in(phases_.back(), num_samples_);
    first = num_samples_;
    if (until <= used_up) ++i;
  }
}

void SampleOrder::begin_phase(int64_t first, const std::vector<double>& weights, std::vector<int64_t> before) {
  Phase phase{.first = first,
              .weights = weights,
              .slots = round_to_slots(weights),
              .before = std::move(before),
              .cycle = std::vector<Position>(slots_per_cycle)};
  std::vector<int64_t> slot_ends(phase.slots.size());
  std::partial_sum(phase.slots.begin(), phase.slots.end(), slot_ends.begin());
  std::vector<uint16_t> owned(phase.slots.size(), 0);
  // A source alone owns all slots, in whatever order.
  const bool several = *std::max_element(phase.slots.begin(), phase.slots.end()) < slots_per_cycle;
  for (int64_t position = 0; position < slots_per_cycle; ++position) {
    // Sources are interleaved also without shuffle: otherwise one source could give the first 65,536 samples.
    const int64_t slot = permute(several, cycle_key_, static_cast<int64_t>(phases_.size()), slots_per_cycle, position);
    const auto source =
        static_cast<size_t>(std::upper_bound(slot_ends.begin(), slot_ends.end(), slot) - slot_ends.begin());
    phase.cycle[position] = {static_cast<uint16_t>(source), owned[source]++};
  }
  phases_.push_back(std::move(phase));
}

int64_t SampleOrder::number_in(const Phase& phase, size_t source, int64_t ordinal) {
  const int64_t slots = phase.slots[source];
  const int64_t own = ordinal - phase.before[source];
  const auto rank = static_cast<uint16_t>(own % slots);
  const auto found = std::find_if(phase.cycle.begin(), phase.cycle.end(), [&](const Position& position) {
    return position.source == source && position.rank == rank;
  });
  return phase.first + own / slots * slots_per_cycle + (found - phase.cycle.begin());
}

int64_t SampleOrder::end_of_phase(const std::vector<int64_t>& limits) const {
  const Phase& phase = phases_.back();
  int64_t end = no_end;
  for (size_t source = 0; source < limits.size(); ++source) {
    // Limits beyond any run need no search, and would overflow.
    if (phase.slots[source] == 0 || limits[source] > no_end / slots_per_cycle / 2) continue;
    end = std::min(end, number_in(phase, source, limits[source] - 1) + 1);
  }
  return end;
}

std::vector<int64_t> SampleOrder::taken_in(const Phase& phase, int64_t end) {
  std::vector<int64_t> taken = phase.before;
  const int64_t count = end - phase.first;
  for (size_t i = 0; i < taken.size(); ++i) taken[i] += phase.slots[i] * (count / slots_per_cycle);
  for (int64_t position = 0; position < count % slots_per_cycle; ++position) {
    ++taken[phase.cycle[position].source];
  }
  return taken;
}

SampleLocation SampleOrder::locate(int64_t sample) const {
  const auto after = std::upper_bound(phases_.begin(), phases_.end(), sample,
                                      [](int64_t number, const Phase& phase) { return number < phase.first; });
  const Phase& phase = *(after - 1);
  const int64_t number = sample - phase.first;
  const Position& position = phase.cycle[number % slots_per_cycle];
  const size_t source = position.source;
  const int64_t ordinal = phase.before[source] + number / slots_per_cycle * phase.slots[source] + position.rank;
  const int64_t samples = samples_[source];
  const int64_t epoch = ordinal / samples;
  return {source, epoch, permute(shuffle_, source_keys_[source], epoch, samples, ordinal % samples)};
}

std::vector<MixturePhase> SampleOrder::mixture() const {
  std::vector<MixturePhase> mixture;
  for (size_t i = 0; i < phases_.size(); ++i)
    mixture.push_back({i + 1 < phases_.size() ? phases_[i + 1].first : 0, phases_[i].weights});
  return mixture;
}

std::vector<int64_t> SampleOrder::taken_by(int64_t num_samples) const {
  const auto after = std::lower_bound(phases_.begin() + 1, phases_.end(), num_samples,
                                      [](const Phase& phase, int64_t number) { return phase.first < number; });
  return taken_in(*(after - 1), num_samples);
}

std::optional<int64_t> SampleOrder::number_of(size_t source, int64_t ordinal) const {
  if (ordinal > no_end / slots_per_cycle / 2) return std::nullopt;  // after the end of any run
  for (size_t i = 0; i < phases_.size(); ++i) {
    const bool is_last = i + 1 == phases_.size();
    const Phase& phase = phases_[i];
    if (phase.slots[source] == 0 || (!is_last && phases_[i + 1].before[source] <= ordinal)) continue;
    const int64_t number = number_in(phase, source, ordinal);
    return number < num_samples_ ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace gptrain::data
