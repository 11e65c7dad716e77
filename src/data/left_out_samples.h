// Samples of the data's order that a run leaves out: data.skip_samples, and those that it has gone back from
// (run.rollback).
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"

namespace gptrain {

// The order gives each sample a place, counted from 0. What a run sees is numbered on its own: sample n is the n-th whose
// place is not left out. No call allocates, the constructor apart.
class LeftOutSamples {
 public:
  LeftOutSamples() = default;
  // In any order; they may overlap.
  explicit LeftOutSamples(std::vector<SampleRange> ranges);

  // Ascending; none touches its neighbour.
  const std::vector<SampleRange>& ranges() const { return ranges_; }
  int64_t place_of(int64_t sample) const;
  // How many of the places below `place` are left out.
  int64_t before(int64_t place) const;

 private:
  std::vector<SampleRange> ranges_;
};

// Both together.
std::vector<SampleRange> join(std::vector<SampleRange> ranges, const std::vector<SampleRange>& others);

}  // namespace gptrain
