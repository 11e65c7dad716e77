// Computes source and index of the n-th sample: arithmetic only, no files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/philox.h"

namespace gptrain::inline data {

constexpr int64_t slots_per_cycle = 65536;

// Returns the number of samples of sequence_length + 1 tokens in `tokens` tokens, neighbours overlapping by one.
constexpr int64_t samples_per_epoch(int64_t tokens, int64_t sequence_length) {
  return tokens < 1 ? 0 : (tokens - 1) / sequence_length;
}

// Returns how many of the slots_per_cycle slots of a cycle each source gets: its weight's share, rounded by largest
// remainder; ties go to the earlier source. A source with a weight above 0 gets at least one slot, if need be from the
// source with the most. REQUIRES: weights finite, not negative, at least one above 0, at most slots_per_cycle of them.
std::vector<int64_t> round_to_slots(std::span<const double> weights);

struct SampleLocation {
  size_t source;
  int64_t epoch;  // epoch of the source
  int64_t index;  // sample within the source, < samples per epoch
};

// Weights of the sources from the end of the previous phase up to a sample number.
struct MixturePhase {
  int64_t until_sample = 0;     // ignored in the last phase, which has no end
  std::vector<double> weights;  // by source
};

// The order that dataset.h describes. Position n mod 65536 of every cycle belongs to one source, by one keyed
// permutation of the slots: the sources own slots in a row, in their order, as many as round_to_slots gives each. The
// sample's ordinal in its source, cycle * slots + the owned positions before it in the cycle, rises without gaps with
// n, so that one epoch of a source ends before the next begins; each epoch has its own permutation. Each phase has its
// own cycles, counted from its first sample, with slots permuted by the phase's number as tweak; ordinals continue.
// When a source has given all samples that it may, a phase ends and the next continues without it. The table of a
// cycle's positions takes 256 KiB per phase, whatever the size of the data.
class SampleOrder {
 public:
  // `phases`: at least one. `samples`: per epoch of each source, all >= 1. `shuffle` false: a source gives its samples
  // in file order. `limits`: most samples that each source gives over the whole order, all >= 1, the largest int64_t
  // for unlimited; an empty list: all are unlimited.
  SampleOrder(const std::vector<MixturePhase>& phases, std::vector<int64_t> samples, uint64_t seed, bool shuffle,
              const std::vector<int64_t>& limits = {});

  // Returns the location of the sample with this number (>= 0), after a binary search among phases. From num_samples()
  // on, the last phase continues without limits.
  SampleLocation locate(int64_t sample) const;

  // Returns the number of samples until no source may give more; the largest int64_t if unlimited.
  int64_t num_samples() const { return num_samples_; }
  // Returns how many of samples 0 ... num_samples - 1 come from each source.
  std::vector<int64_t> taken_by(int64_t num_samples) const;
  // Returns the number of the sample that is the `ordinal`-th of a source, from 0; nullopt if it never comes.
  std::optional<int64_t> number_of(size_t source, int64_t ordinal) const;
  // Slots of each source in a cycle of the first phase.
  const std::vector<int64_t>& first_slots() const { return phases_.front().slots; }
  size_t num_phases() const { return phases_.size(); }
  // The phases as they come, with weight 0 for sources that are used up. Given as `phases`, they make the same order.
  std::vector<MixturePhase> mixture() const;

 private:
  // Both fit 16 bits: a cycle has 65,536 positions, and there are at most as many sources.
  struct Position {
    uint16_t source;
    uint16_t rank;  // earlier positions of the same source in the cycle
  };

  struct Phase {
    int64_t first;  // first sample
    std::vector<double> weights;
    std::vector<int64_t> slots;   // positions of a cycle that each source owns
    std::vector<int64_t> before;  // samples given by each source before this phase
    std::vector<Position> cycle;
  };

  void begin_phase(int64_t first, const std::vector<double>& weights, std::vector<int64_t> before);
  // Returns where the first source of the last phase is used up; the largest int64_t if none is.
  int64_t end_of_phase(const std::vector<int64_t>& limits) const;
  static int64_t number_in(const Phase& phase, size_t source, int64_t ordinal);
  static std::vector<int64_t> taken_in(const Phase& phase, int64_t end);

  std::vector<int64_t> samples_;
  std::vector<Phase> phases_;
  int64_t num_samples_ = 0;
  PhiloxKey cycle_key_;
  std::vector<PhiloxKey> source_keys_;
  bool shuffle_;
};

}  // namespace gptrain::data
