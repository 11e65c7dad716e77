#include "parallel/memory.h"

#include <numeric>

namespace gptrain::inline parallel {

int64_t MemoryPlan::total(MemoryPlace place) const {
  return std::accumulate(on(place).begin(), on(place).end(), int64_t{0});
}

MemoryPlan::ByClass MemoryPlan::host_memory() const {
  ByClass bytes = on(MemoryPlace::pinned_host);
  for (size_t c = 0; c < num_memory_classes; ++c) bytes[c] += on(MemoryPlace::host)[c];
  return bytes;
}

MemoryPlan& MemoryPlan::operator+=(const MemoryPlan& other) {
  for (size_t place = 0; place < num_memory_places; ++place) {
    for (size_t c = 0; c < num_memory_classes; ++c) bytes_[place][c] += other.bytes_[place][c];
  }
  return *this;
}

void HostMemoryUse::add(const MemoryPlan::ByClass& of_rank) {
  ++ranks;
  for (size_t c = 0; c < num_memory_classes; ++c) bytes[c] += of_rank[c];
}

int64_t HostMemoryUse::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

}  // namespace gptrain::parallel
