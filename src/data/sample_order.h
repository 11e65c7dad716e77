// Which sample of which source comes n-th: arithmetic only, no files.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/philox.h"

namespace gptrain {

constexpr int64_t slots_per_cycle = 65536;

// Samples of sequence_length + 1 tokens in a run of `tokens` tokens, neighbours overlapping by one.
constexpr int64_t samples_per_epoch(int64_t tokens, int64_t sequence_length) {
  return tokens < 1 ? 0 : (tokens - 1) / sequence_length;
}

// Weights (finite, positive, at most slots_per_cycle of them) as slots of a cycle, by largest remainder; ties go to the
// earlier source. A source that would get none takes one from the source that has most.
std::vector<int64_t> round_to_slots(std::span<const double> weights);

struct SampleLocation {
  size_t source;
  int64_t epoch;  // of that source
  int64_t index;  // of the sample in the source, < samples per epoch
};

// The order that dataset.h describes. Position n mod 65536 of every cycle belongs to one source, by one keyed
// permutation of the slots: source i owns the positions whose slot is in [slot_starts[i], slot_starts[i + 1]). The
// sample's ordinal in its source, cycle * slots + the owned positions before it in the cycle, counts up without gaps as
// n does, so that one epoch of a source ends before the next begins; each epoch has a permutation of its own. The table
// of a cycle's positions takes 256 KiB, whatever the data's size.
class SampleOrder {
 public:
  // `slots` as of round_to_slots; `samples` per epoch of each source, all >= 1.
  SampleOrder(std::span<const int64_t> slots, std::vector<int64_t> samples, uint64_t seed, bool shuffle);

  SampleLocation locate(int64_t sample) const;  // sample >= 0; O(1)

  // How many of samples 0 ... num_samples - 1 each source gives.
  std::vector<int64_t> taken_by(int64_t num_samples) const;

 private:
  // Both fit: a cycle has 65,536 positions, and every source owns at least one.
  struct Position {
    uint16_t source;
    uint16_t rank;  // positions of the same source before it in the cycle
  };

  std::vector<int64_t> slots_;  // positions of a cycle that each source owns
  std::vector<int64_t> samples_;
  std::vector<Position> cycle_;
  std::vector<PhiloxKey> source_keys_;
  bool shuffle_;
};

}  // namespace gptrain
