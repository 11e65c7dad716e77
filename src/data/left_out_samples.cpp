#include "data/left_out_samples.h"

#include <algorithm>
#include <utility>

namespace gptrain::inline data {
namespace {

int64_t end_of(const SampleRange& range) { return range.first + range.count; }

}  // namespace

LeftOutSamples::LeftOutSamples(std::vector<SampleRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const SampleRange& a, const SampleRange& b) { return a.first < b.first; });
  for (const SampleRange& range : ranges) {
    if (ranges_.empty() || end_of(ranges_.back()) < range.first) {
      ranges_.push_back(range);
      continue;
    }
    SampleRange& last = ranges_.back();
    last.count = std::max(end_of(last), end_of(range)) - last.first;
  }
}

int64_t LeftOutSamples::position_of(int64_t sample) const {
  int64_t position = sample;
  for (const SampleRange& range : ranges_) {
    if (position < range.first) break;
    position += range.count;
  }
  return position;
}

int64_t LeftOutSamples::before(int64_t position) const {
  int64_t count = 0;
  for (const SampleRange& range : ranges_) count += std::clamp<int64_t>(position - range.first, 0, range.count);
  return count;
}

std::vector<SampleRange> join(std::vector<SampleRange> ranges, const std::vector<SampleRange>& others) {
  ranges.insert(ranges.end(), others.begin(), others.end());
  return LeftOutSamples(std::move(ranges)).ranges();
}

}  // namespace gptrain::data
