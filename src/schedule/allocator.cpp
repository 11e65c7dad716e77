#include "schedule/allocator.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <map>

namespace gptrain {
namespace {

bool is_placed(const Lifetime& lifetime) { return lifetime.first >= 0 && lifetime.bytes > 0; }

// Indices of what is to be placed, by their first action; of one action's, `before` decides.
template <typename Before>
std::vector<size_t> by_first(const std::vector<Lifetime>& lifetimes, const Before& before) {
  std::vector<size_t> order;
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    if (is_placed(lifetimes[i])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (lifetimes[a].first != lifetimes[b].first) return lifetimes[a].first < lifetimes[b].first;
    return before(lifetimes[a], lifetimes[b]);
  });
  return order;
}

std::vector<size_t> by_last(const std::vector<Lifetime>& lifetimes) {
  std::vector<size_t> order;
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    if (is_placed(lifetimes[i])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].last < lifetimes[b].last; });
  return order;
}

// Free stretches of an arena that has no end yet.
class FreeList {
 public:
  // The smallest stretch that holds it, at its start; else the arena's end, where a free stretch may lie before.
  int64_t take(int64_t bytes) {
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
    }
    if (best == free_.end()) return take_at_end(bytes);
    const auto [start, room] = *best;
    free_.erase(best);
    if (room > bytes) free_[start + bytes] = room - bytes;
    return start;
  }

  void give_back(int64_t offset, int64_t bytes) {
    auto it = free_.emplace(offset, bytes).first;
    if (const auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it != free_.begin()) {
      if (const auto before = std::prev(it); before->first + before->second == it->first) {
        before->second += it->second;
        free_.erase(it);
        it = before;
      }
    }
    // What ends with the arena is no stretch between others.
    if (it->first + it->second == end_) {
      end_ = it->first;
      free_.erase(it);
    }
  }

  int64_t most() const { return most_; }

 private:
  int64_t take_at_end(int64_t bytes) {
    const int64_t start = end_;
    end_ += bytes;
    most_ = std::max(most_, end_);
    return start;
  }

  std::map<int64_t, int64_t> free_;  // start -> bytes
  int64_t end_ = 0;
  int64_t most_ = 0;
};

template <typename Before>
Placement scan(const std::vector<Lifetime>& lifetimes, const std::vector<size_t>& ends, const Before& before) {
  Placement placement{std::vector<int64_t>(lifetimes.size(), 0), 0};
  FreeList free;
  size_t ended = 0;
  for (const size_t i : by_first(lifetimes, before)) {
    for (; lifetimes[ends[ended]].last < lifetimes[i].first; ++ended)
      free.give_back(placement.offsets[ends[ended]], lifetimes[ends[ended]].bytes);
    placement.offsets[i] = free.take(lifetimes[i].bytes);
  }
  placement.bytes = free.most();
  return placement;
}

}  // namespace

Placement place(const std::vector<Lifetime>& lifetimes) {
  // Of what begins in one action, what lives longer lies lower: what is above it is free again sooner. That suits the
  // passes of a step, which end in the reverse order of their beginnings; where sizes differ much, the largest first
  // may leave smaller gaps.
  const std::vector<size_t> ends = by_last(lifetimes);
  Placement longest = scan(lifetimes, ends, [](const Lifetime& a, const Lifetime& b) { return a.last > b.last; });
  Placement largest = scan(lifetimes, ends, [](const Lifetime& a, const Lifetime& b) { return a.bytes > b.bytes; });
  return longest.bytes <= largest.bytes ? longest : largest;
}

int64_t most_alive_bytes(const std::vector<Lifetime>& lifetimes) {
  std::map<int32_t, int64_t> changes;
  for (const Lifetime& lifetime : lifetimes) {
    if (!is_placed(lifetime)) continue;
    changes[lifetime.first] += lifetime.bytes;
    changes[lifetime.last + 1] -= lifetime.bytes;
  }
  int64_t alive = 0;
  int64_t most = 0;
  for (const auto& [action, change] : changes) most = std::max(most, alive += change);
  return most;
}

std::string check(const Placement& placement, const std::vector<Lifetime>& lifetimes) {
  const auto end_of = [&](size_t i) { return placement.offsets[i] + lifetimes[i].bytes; };
  const std::vector<size_t> ends = by_last(lifetimes);
  std::map<int64_t, size_t> alive;  // by offset
  size_t ended = 0;
  for (const size_t i : by_first(lifetimes, [](const Lifetime&, const Lifetime&) { return false; })) {
    for (; lifetimes[ends[ended]].last < lifetimes[i].first; ++ended) alive.erase(placement.offsets[ends[ended]]);
    if (placement.offsets[i] < 0 || end_of(i) > placement.bytes)
      return fmt::format("buffer {} ends at byte {} of {}", i, end_of(i), placement.bytes);
    const auto above = alive.lower_bound(placement.offsets[i]);
    if (above != alive.end() && above->first < end_of(i))
      return fmt::format("buffers {} and {} share memory in action {}", above->second, i, lifetimes[i].first);
    if (above != alive.begin()) {
      const size_t below = std::prev(above)->second;
      if (end_of(below) > placement.offsets[i])
        return fmt::format("buffers {} and {} share memory in action {}", below, i, lifetimes[i].first);
    }
    alive[placement.offsets[i]] = i;
  }
  return {};
}

}  // namespace gptrain
