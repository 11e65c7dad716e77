// Ways of rows between the ranks of a group that hold experts between them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gptrain::inline model {

// Each rank of the group has a run of as many experts. A rank has places of rows, ordered by expert (RouteTokens), and
// sends the rank of an expert a range of them: all rows for its experts, or the rank's share of them.
struct ExpertSpread {
  int64_t ranks = 1;        // ranks of the group
  int64_t experts = 1;      // experts of all ranks
  int64_t shares = 1;       // neighbouring ranks that have the same rows, each of which sends a share
  int64_t first_share = 0;  // share of the group's first rank
  int64_t bound = 0;        // rows for which a rank has room

  struct Range {
    int64_t first, count;
  };
  int64_t own_experts() const { return experts / ranks; }
  // RETURNS the places of rank `from` with rows for rank `to`. `starts`: for each rank the first place of each expert,
  // then the number of places.
  Range rows_for(const std::vector<int32_t>& starts, int64_t from, int64_t to) const {
    const int32_t* const first = starts.data() + from * (experts + 1) + to * own_experts();
    return {first[0], first[own_experts()] - first[0]};
  }
  // RETURNS those of them that the rank sends, if there is room.
  Range sent(const std::vector<int32_t>& starts, int64_t from, int64_t to) const {
    const auto [first, count] = rows_for(starts, from, to);
    const int64_t share = (first_share + from) % shares;
    const int64_t begin = first + count * share / shares;
    return {begin, first + count * (share + 1) / shares - begin};
  }
  // Calls body(from, range) for all senders to a rank, with ranges that are cut where there is no room. RETURNS the
  // rows without a cut.
  template <typename Body>
  int64_t each_sender(const std::vector<int32_t>& starts, int64_t to, const Body& body) const {
    int64_t rows = 0;
    for (int64_t from = 0; from < ranks; ++from) {
      const Range range = sent(starts, from, to);
      body(from, Range{range.first, std::clamp<int64_t>(bound - rows, 0, range.count)});
      rows += range.count;
    }
    return rows;
  }
};

// The order of rows that a rank has received, sender by sender and of each by expert, as rows of its experts: by
// expert, and of each by sender.
class RowArrangement {
 public:
  explicit RowArrangement(const ExpertSpread& spread)
      : spread_(spread),
        offsets_(static_cast<size_t>(spread.own_experts()) + 1),
        runs_(static_cast<size_t>(spread.ranks * spread.own_experts())) {}

  void arrange(const std::vector<int32_t>& starts, int64_t rank) {
    const int64_t own = spread_.own_experts();
    int32_t number = 0;
    spread_.each_sender(starts, rank, [&](int64_t from, ExpertSpread::Range range) {
      const int32_t* const first = starts.data() + from * (spread_.experts + 1) + rank * own;
      for (int64_t expert = 0; expert < own; ++expert) {
        const int64_t begin = std::max<int64_t>(range.first, first[expert]);
        const int64_t end = std::min<int64_t>(range.first + range.count, first[expert + 1]);
        const auto count = static_cast<int32_t>(std::max<int64_t>(end - begin, 0));
        run(from, expert) = {.number = number, .row = 0, .count = count};
        number += count;
      }
    });
    int32_t row = 0;
    for (int64_t expert = 0; expert < own; ++expert) {
      offsets_[static_cast<size_t>(expert)] = row;
      for (int64_t from = 0; from < spread_.ranks; ++from) {
        run(from, expert).row = row;
        row += run(from, expert).count;
      }
    }
    offsets_.back() = row;
  }

  // RETURNS the first row of each expert, then the number of rows.
  const std::vector<int32_t>& offsets() const { return offsets_; }
  // Calls body(first, count) for runs of numbers of received rows in the order of the experts' rows, and the other way
  // round.
  template <typename Body>
  void each_number(const Body& body) const {
    for (int64_t expert = 0; expert < spread_.own_experts(); ++expert)
      for (int64_t from = 0; from < spread_.ranks; ++from) body(run(from, expert).number, run(from, expert).count);
  }
  template <typename Body>
  void each_row(const Body& body) const {
    for (const Run& of : runs_) body(of.row, of.count);
  }

 private:
  // Rows of a sender for an expert.
  struct Run {
    int32_t number, row, count;
  };
  Run& run(int64_t from, int64_t expert) { return runs_[static_cast<size_t>(from * spread_.own_experts() + expert)]; }
  const Run& run(int64_t from, int64_t expert) const {
    return runs_[static_cast<size_t>(from * spread_.own_experts() + expert)];
  }

  const ExpertSpread spread_;
  std::vector<int32_t> offsets_;
  std::vector<Run> runs_;  // by sender and expert
};

}  // namespace gptrain::model
