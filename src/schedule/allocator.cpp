#include "schedule/allocator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fmt/format.h>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

namespace gptrain::inline schedule {
namespace {

bool is_placed(const Lifetime& lifetime) { return lifetime.first >= 0 && lifetime.bytes > 0; }

// Indices of placed lifetimes, grouped by their first or last action with a counting sort.
class ByAction {
 public:
  ByAction(const std::vector<Lifetime>& lifetimes, int32_t Lifetime::*action) {
    int32_t last = -1;
    for (const Lifetime& lifetime : lifetimes) last = std::max(last, lifetime.last);
    starts_.assign(static_cast<size_t>(last) + 2, 0);
    for (const Lifetime& lifetime : lifetimes) {
      if (is_placed(lifetime)) ++starts_[static_cast<size_t>(lifetime.*action) + 1];
    }
    for (size_t i = 1; i < starts_.size(); ++i) starts_[i] += starts_[i - 1];
    indices_.resize(starts_.back());
    std::vector<uint32_t> next(starts_.begin(), starts_.end() - 1);
    for (size_t i = 0; i < lifetimes.size(); ++i) {
      if (is_placed(lifetimes[i])) indices_[next[lifetimes[i].*action]++] = static_cast<uint32_t>(i);
    }
  }

  size_t num_actions() const { return starts_.size() - 1; }
  const std::vector<uint32_t>& indices() const { return indices_; }  // by rising action
  std::span<uint32_t> of(size_t action) {
    return {indices_.data() + starts_[action], starts_[action + 1] - starts_[action]};
  }

 private:
  std::vector<uint32_t> starts_;  // by action: its first index in indices_; then the size of indices_
  std::vector<uint32_t> indices_;
};

// Free stretches of an arena that grows as needed.
class FreeList {
 public:
  // Takes the start of the smallest free stretch that has `bytes`, or else grows the arena. Returns the offset.
  int64_t take(int64_t bytes) {
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->bytes >= bytes && (best == free_.end() || it->bytes < best->bytes)) best = it;
    }
    if (best == free_.end()) return take_at_end(bytes);
    const int64_t start = best->start;
    best->start += bytes;
    best->bytes -= bytes;
    if (best->bytes == 0) free_.erase(best);
    return start;
  }

  void give_back(int64_t offset, int64_t bytes) {
    const auto after = std::lower_bound(free_.begin(), free_.end(), offset,
                                        [](const Stretch& stretch, int64_t start) { return stretch.start < start; });
    auto it = free_.insert(after, {offset, bytes});
    if (const auto next = std::next(it); next != free_.end() && it->end() == next->start) {
      it->bytes += next->bytes;
      free_.erase(next);
    }
    if (it != free_.begin()) {
      if (const auto before = std::prev(it); before->end() == it->start) {
        before->bytes += it->bytes;
        free_.erase(it);
        it = before;
      }
    }
    // A free stretch at the end shrinks the arena.
    if (it->end() == end_) {
      end_ = it->start;
      free_.erase(it);
    }
  }

  int64_t most() const { return most_; }

 private:
  struct Stretch {
    int64_t start, bytes;

    int64_t end() const { return start + bytes; }
  };

  int64_t take_at_end(int64_t bytes) {
    const int64_t start = end_;
    end_ += bytes;
    most_ = std::max(most_, end_);
    return start;
  }

  std::vector<Stretch> free_;  // by start; few, so that a vector is faster than a map
  int64_t end_ = 0;
  int64_t most_ = 0;
};

// Places lifetimes in the order of their first actions. `before(a, b)`: a is placed first if both begin in one action.
// Returns nothing if the arena takes `limit` bytes or more.
template <typename Before>
std::optional<Placement> scan(const std::vector<Lifetime>& lifetimes, ByAction& beginning, ByAction& ending,
                              int64_t limit, const Before& before) {
  Placement placement{std::vector<int64_t>(lifetimes.size(), 0), 0};
  FreeList free;
  for (size_t action = 0; action < beginning.num_actions(); ++action) {
    const std::span<uint32_t> begins = beginning.of(action);
    // Sorts by insertion: few begin together, and std::stable_sort allocates memory.
    for (auto it = begins.begin(); it != begins.end(); ++it) {
      const auto place = std::upper_bound(begins.begin(), it, *it,
                                          [&](size_t a, size_t b) { return before(lifetimes[a], lifetimes[b]); });
      std::rotate(place, it, std::next(it));
    }
    for (const size_t i : begins) placement.offsets[i] = free.take(lifetimes[i].bytes);
    if (free.most() >= limit) return std::nullopt;
    for (const size_t i : ending.of(action)) free.give_back(placement.offsets[i], lifetimes[i].bytes);
  }
  placement.bytes = free.most();
  return placement;
}

// Lifetimes that have their offsets, by offset. Columns, as a search reads few of a lifetime's values.
class PlacedLifetimes {
 public:
  // Returns the lowest offset at which `lifetime` shares no byte with a placed one that shares an action with it.
  int64_t lowest_for(const Lifetime& lifetime) const {
    int64_t offset = 0;
    for (size_t begin = 0; begin < first_.size() && offset_[begin] < offset + lifetime.bytes; begin += block_size) {
      // Few of a block share an action: all are compared at once, and those that do not are passed eight at a time.
      std::array<uint8_t, block_size> shares{};
      const size_t count = std::min(block_size, first_.size() - begin);
      for (size_t i = 0; i < count; ++i)
        shares[i] = static_cast<uint8_t>(static_cast<int>(last_[begin + i] >= lifetime.first) &
                                         static_cast<int>(first_[begin + i] <= lifetime.last));
      for (size_t eight = 0; eight < block_size; eight += 8) {
        uint64_t left = 0;
        std::memcpy(&left, &shares[eight], sizeof left);
        for (; left != 0; left &= left - 1) {
          const size_t i = begin + eight + static_cast<size_t>(std::countr_zero(left)) / 8;
          if (offset_[i] >= offset + lifetime.bytes) return offset;
          offset = std::max(offset, end_[i]);
        }
      }
    }
    return offset;
  }

  void add(const Lifetime& lifetime, int64_t offset) {
    const auto index = std::upper_bound(offset_.begin(), offset_.end(), offset) - offset_.begin();
    first_.insert(first_.begin() + index, lifetime.first);
    last_.insert(last_.begin() + index, lifetime.last);
    offset_.insert(offset_.begin() + index, offset);
    end_.insert(end_.begin() + index, offset + lifetime.bytes);
  }

 private:
  static constexpr size_t block_size = 64;
  std::vector<int32_t> first_, last_;
  std::vector<int64_t> offset_, end_;
};

// Places the largest first, each at the lowest offset that is free during its lifetime. O(n^2). Returns nothing if the
// arena takes `limit` bytes or more.
std::optional<Placement> by_size(const std::vector<Lifetime>& lifetimes, int64_t limit) {
  std::vector<size_t> order;
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    if (is_placed(lifetimes[i])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  Placement placement{std::vector<int64_t>(lifetimes.size(), 0), 0};
  PlacedLifetimes placed;
  for (const size_t i : order) {
    const int64_t offset = placed.lowest_for(lifetimes[i]);
    const int64_t end = offset + lifetimes[i].bytes;
    if (end >= limit) return std::nullopt;
    placement.offsets[i] = offset;
    placement.bytes = std::max(placement.bytes, end);
    placed.add(lifetimes[i], offset);
  }
  return placement;
}

// Returns the smallest of up to three placements; tries no more once one has the least possible size. Two of them take
// lifetimes in the order in which they begin. Among lifetimes that begin together, one takes those first that end last,
// which suits a step, whose passes end in the reverse order of their beginnings; the other takes the largest first. The
// third takes all lifetimes by size, which may leave smaller gaps if sizes differ much.
Placement best_placement(const std::vector<Lifetime>& lifetimes) {
  constexpr size_t most_by_size = 4096;
  const int64_t least = most_alive_bytes(lifetimes);
  ByAction beginning(lifetimes, &Lifetime::first);
  ByAction ending(lifetimes, &Lifetime::last);
  Placement best = *scan(lifetimes, beginning, ending, std::numeric_limits<int64_t>::max(),
                         [](const Lifetime& a, const Lifetime& b) { return a.last > b.last; });
  const auto try_another = [&](const auto& smaller_than) {
    if (best.bytes == least) return;
    if (std::optional<Placement> other = smaller_than(best.bytes)) best = std::move(*other);
  };
  try_another([&](int64_t limit) {
    return scan(lifetimes, beginning, ending, limit,
                [](const Lifetime& a, const Lifetime& b) { return a.bytes > b.bytes; });
  });
  if (lifetimes.size() <= most_by_size) try_another([&](int64_t limit) { return by_size(lifetimes, limit); });
  return best;
}

// Groups of lifetimes that share no action with any other group, such as one micro-batch's if there is a single stage.
// Groups that are equal after removing the actions in which no lifetime begins or ends get equal placements.
class Stretches {
 public:
  explicit Stretches(const std::vector<Lifetime>& lifetimes) : lifetimes_(lifetimes) {
    const ByAction beginning(lifetimes, &Lifetime::first);
    order_ = beginning.indices();
    int32_t last = -1;
    for (size_t i = 0; i < order_.size(); ++i) {
      const Lifetime& lifetime = lifetimes[order_[i]];
      if (lifetime.first > last) starts_.push_back(i);
      last = std::max(last, lifetime.last);
    }
    starts_.push_back(order_.size());
  }

  size_t count() const { return starts_.size() - 1; }
  std::span<const uint32_t> members(size_t stretch) const {
    return {order_.data() + starts_[stretch], starts_[stretch + 1] - starts_[stretch]};
  }

  // Whether group b is group a shifted by a number of actions.
  bool are_shifted(size_t a, size_t b) const {
    const std::span<const uint32_t> of_a = members(a), of_b = members(b);
    if (of_a.size() != of_b.size()) return false;
    const int32_t shift = lifetimes_[of_b[0]].first - lifetimes_[of_a[0]].first;
    return std::equal(of_a.begin(), of_a.end(), of_b.begin(), [&](uint32_t i, uint32_t j) {
      const Lifetime& x = lifetimes_[i];
      const Lifetime& y = lifetimes_[j];
      return x.first + shift == y.first && x.last + shift == y.last && x.bytes == y.bytes;
    });
  }

  std::vector<Lifetime> lifetimes(size_t stretch) const {
    std::vector<Lifetime> result;
    int32_t last = -1;
    for (const size_t i : members(stretch)) {
      result.push_back(lifetimes_[i]);
      last = std::max(last, lifetimes_[i].last);
    }
    if (result.empty()) return result;
    const int32_t first = result.front().first;  // members are in the order of their beginnings
    // By action of the group: 1 if a lifetime begins or ends in it; then the number of such actions before it.
    std::vector<int32_t> change_numbers(static_cast<size_t>(last - first) + 1);
    const auto change_number = [&](int32_t action) -> int32_t& { return change_numbers[action - first]; };
    for (const Lifetime& lifetime : result) change_number(lifetime.first) = change_number(lifetime.last) = 1;
    std::exclusive_scan(change_numbers.begin(), change_numbers.end(), change_numbers.begin(), 0);
    for (Lifetime& lifetime : result)
      lifetime = {change_number(lifetime.first), change_number(lifetime.last), lifetime.bytes};
    return result;
  }

 private:
  const std::vector<Lifetime>& lifetimes_;
  std::vector<uint32_t> order_;  // indices of placed lifetimes, by first action
  std::vector<size_t> starts_;   // by group: its first index in order_; then the size of order_
};

}  // namespace

Placement place_buffers(const std::vector<Lifetime>& lifetimes) {
  Placement placement{std::vector<int64_t>(lifetimes.size(), 0), 0};
  const Stretches stretches(lifetimes);
  std::vector<Lifetime> last;
  Placement last_placement;
  for (size_t stretch = 0; stretch < stretches.count(); ++stretch) {
    if (stretch == 0 || !stretches.are_shifted(stretch - 1, stretch)) {
      std::vector<Lifetime> next = stretches.lifetimes(stretch);
      if (next != last) last_placement = best_placement(next);
      last = std::move(next);
    }
    const std::span<const uint32_t> members = stretches.members(stretch);
    for (size_t i = 0; i < members.size(); ++i) placement.offsets[members[i]] = last_placement.offsets[i];
    placement.bytes = std::max(placement.bytes, last_placement.bytes);
  }
  return placement;
}

int64_t most_alive_bytes(const std::vector<Lifetime>& lifetimes) {
  int32_t last = -1;
  for (const Lifetime& lifetime : lifetimes) last = std::max(last, lifetime.last);
  std::vector<int64_t> changes(static_cast<size_t>(last) + 2, 0);
  for (const Lifetime& lifetime : lifetimes) {
    if (!is_placed(lifetime)) continue;
    changes[lifetime.first] += lifetime.bytes;
    changes[static_cast<size_t>(lifetime.last) + 1] -= lifetime.bytes;
  }
  int64_t alive = 0;
  int64_t most = 0;
  for (const int64_t change : changes) most = std::max(most, alive += change);
  return most;
}

std::string check(const Placement& placement, const std::vector<Lifetime>& lifetimes) {
  const auto end_of = [&](size_t i) { return placement.offsets[i] + lifetimes[i].bytes; };
  ByAction beginning(lifetimes, &Lifetime::first);
  ByAction ending(lifetimes, &Lifetime::last);
  std::map<int64_t, size_t> alive;  // by offset
  for (size_t action = 0; action < beginning.num_actions(); ++action) {
    for (const size_t i : beginning.of(action)) {
      if (placement.offsets[i] < 0 || end_of(i) > placement.bytes)
        return fmt::format("buffer {} ends at byte {} of {}", i, end_of(i), placement.bytes);
      const auto above = alive.lower_bound(placement.offsets[i]);
      if (above != alive.end() && above->first < end_of(i))
        return fmt::format("buffers {} and {} share memory in action {}", above->second, i, action);
      if (above != alive.begin() && end_of(std::prev(above)->second) > placement.offsets[i])
        return fmt::format("buffers {} and {} share memory in action {}", std::prev(above)->second, i, action);
      alive[placement.offsets[i]] = i;
    }
    for (const size_t i : ending.of(action)) alive.erase(placement.offsets[i]);
  }
  return {};
}

}  // namespace gptrain::schedule
