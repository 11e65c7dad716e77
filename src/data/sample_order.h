// Which sample of which source comes n-th: arithmetic only, no files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/philox.h"

namespace gptrain {

constexpr int64_t slots_per_cycle = 65536;

// Samples of sequence_length + 1 tokens in a run of `tokens` tokens, neighbours overlapping by one.
constexpr int64_t samples_per_epoch(int64_t tokens, int64_t sequence_length) {
  return tokens < 1 ? 0 : (tokens - 1) / sequence_length;
}

// Weights (finite, not negative, one above 0, at most slots_per_cycle of them) as slots of a cycle, by largest
// remainder; ties go to the earlier source. A source with a weight above 0 that would get none takes one from the
// source that has most.
std::vector<int64_t> round_to_slots(std::span<const double> weights);

struct SampleLocation {
  size_t source;
  int64_t epoch;  // of that source
  int64_t index;  // of the sample in the source, < samples per epoch
};

// Weights that hold from the samples before on, up to a sample number.
struct MixturePhase {
  int64_t until_sample = 0;  // of the last phase of a list: whatever it says, no end
  std::vector<double> weights;
};

// The order that dataset.h describes. Position n mod 65536 of every cycle belongs to one source, by one keyed
// permutation of the slots: source i owns the positions whose slot is in [slot_starts[i], slot_starts[i + 1]). The
// sample's ordinal in its source, cycle * slots + the owned positions before it in the cycle, counts up without gaps as
// n does, so that one epoch of a source ends before the next begins; each epoch has a permutation of its own. With
// phases each has cycles of its own, counted from its first sample, whose slots are permuted with its number as tweak;
// ordinals count on. Where a source has given as many samples as it may, a phase ends, and the next one goes on without
// it. The table of a cycle's positions takes 256 KiB a phase, whatever the data's size.
class SampleOrder {
 public:
  // `samples` per epoch of each source, all >= 1. `limits`: samples that each source may give; none: any number.
  SampleOrder(const std::vector<MixturePhase>& phases, std::vector<int64_t> samples, uint64_t seed, bool shuffle,
              const std::vector<int64_t>& limits = {});

  // sample >= 0; in the time of a search among phases. From num_samples() on, the last phase goes on without limits.
  SampleLocation locate(int64_t sample) const;

  // Samples until no source may give any more; the largest int64_t where there is no such end.
  int64_t num_samples() const { return num_samples_; }
  // How many of samples 0 ... num_samples - 1 each source gives.
  std::vector<int64_t> taken_by(int64_t num_samples) const;
  // The number of the sample that is the `ordinal`-th of a source, from 0; nothing where it never comes.
  std::optional<int64_t> number_of(size_t source, int64_t ordinal) const;
  // Slots of a cycle at the beginning.
  const std::vector<int64_t>& first_slots() const { return phases_.front().slots; }
  size_t num_phases() const { return phases_.size(); }
  // The phases as they come, with weight 0 for sources that are used up. Given as `phases`, they make the same order.
  std::vector<MixturePhase> mixture() const;

 private:
  // Both fit: a cycle has 65,536 positions, and every source owns at least one.
  struct Position {
    uint16_t source;
    uint16_t rank;  // positions of the same source before it in the cycle
  };

  struct Phase {
    int64_t first;                // sample
    std::vector<double> weights;
    std::vector<int64_t> slots;   // positions of a cycle that each source owns
    std::vector<int64_t> before;  // samples that each source has given before it
    std::vector<Position> cycle;
  };

  void begin_phase(int64_t first, const std::vector<double>& weights, std::vector<int64_t> before);
  // Of the last phase: where the first source is used up; the largest int64_t if none ever is.
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

}  // namespace gptrain
