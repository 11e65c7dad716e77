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

// The order that dataset.h describes. Sample n is slot p(n mod 65536) of cycle n / 65536, p being the permutation of
// that cycle; source i owns the slots [slot_starts[i], slot_starts[i + 1]). Its ordinal in the source, cycle * slots +
// slot - slot_starts[i], is cut into epochs, each with a permutation of its own.
class SampleOrder {
 public:
  // `slots` as of round_to_slots; `samples` per epoch of each source, all >= 1.
  SampleOrder(std::span<const int64_t> slots, std::vector<int64_t> samples, uint64_t seed, bool shuffle);

  SampleLocation locate(int64_t sample) const;  // sample >= 0; O(log sources)

  // How many of samples 0 ... num_samples - 1 each source gives.
  std::vector<int64_t> taken_by(int64_t num_samples) const;

 private:
  int64_t slot_of(int64_t sample) const;
  size_t source_of(int64_t slot) const;

  std::vector<int64_t> slot_starts_;  // one more than there are sources
  std::vector<int64_t> samples_;
  PhiloxKey cycle_key_;
  std::vector<PhiloxKey> source_keys_;
  bool shuffle_;
};

}  // namespace gptrain
