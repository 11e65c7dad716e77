// Samples of the data's order that a run leaves out: data.skip_samples, and those skipped after a rollback
// (run.rollback).
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"

namespace gptrain::inline data {

// Maps a run's sample numbers to positions in the data's order, both counted from 0: sample n is the n-th position that
// is not left out. Only the constructor allocates.
class LeftOutSamples {
 public:
  LeftOutSamples() = default;
  // `ranges` may be in any order and overlap.
  explicit LeftOutSamples(std::vector<SampleRange> ranges);

  // Ascending, with gaps between them.
  const std::vector<SampleRange>& ranges() const { return ranges_; }
  int64_t position_of(int64_t sample) const;
  // Returns the number of left-out positions below `position`.
  int64_t before(int64_t position) const;

 private:
  std::vector<SampleRange> ranges_;
};

// Returns the union.
std::vector<SampleRange> join(std::vector<SampleRange> ranges, const std::vector<SampleRange>& others);

}  // namespace gptrain::data
