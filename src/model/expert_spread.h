// The rows that ranks exchange if each holds some of a layer's experts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gptrain::inline model {

// Each rank of the group holds a run of experts, all of the same length. A rank's slots (RouteTokens) are sorted by
// expert, so the rows for another rank's experts are one range of them. The rank sends this range, or its share of it
// if neighbouring ranks have the same rows.
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
  // RETURNS the slots of rank `from` with rows for rank `to`. `starts`: for each rank the first slot of each expert,
  // then the number of slots.
  Range rows_for(const std::vector<int32_t>& starts, int64_t from, int64_t to) const {
    const int32_t* const first = starts.data() + from * (experts + 1) + to * own_experts();
    return {first[0], first[own_experts()] - first[0]};
  }
  // RETURNS the part of rows_for(from, to) that rank `from` sends: its share. each_sender cuts it off at `bound`.
  Range sent(const std::vector<int32_t>& starts, int64_t from, int64_t to) const {
    const auto [first, count] = rows_for(starts, from, to);
    const int64_t share = (first_share + from) % shares;
    const int64_t begin = first + count * share / shares;
    return {begin, first + count * (share + 1) / shares - begin};
  }
  // Calls body(from, range) for all senders to rank `to`, with the ranges that it receives: a range is cut where
  // `bound` is reached. RETURNS the number of rows that the senders have; above `bound`: rows were cut off.
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

// Permutation of the rows that a rank receives. They arrive by sender, and from each sender by expert; the rank's
// experts take them by expert, and for each expert by sender. REQUIRES: arrange is called before the others.
class RowArrangement {
 public:
  explicit RowArrangement(const ExpertSpread& spread)
      : spread_(spread),
        offsets_(static_cast<size_t>(spread.own_experts()) + 1),
        runs_(spread.ranks * spread.own_experts()) {}

  // Computes the permutation for rank `rank` of the group. `starts`: see ExpertSpread::rows_for.
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
      offsets_[expert] = row;
      for (int64_t from = 0; from < spread_.ranks; ++from) {
        run(from, expert).row = row;
        row += run(from, expert).count;
      }
    }
    offsets_.back() = row;
  }

  // RETURNS the first row of each expert, then the number of rows.
  const std::vector<int32_t>& offsets() const { return offsets_; }
  // each_number calls body(first, count) for runs of arrival numbers in the order of the experts' rows; each_row for
  // runs of experts' rows in the order of arrival.
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
  Run& run(int64_t from, int64_t expert) { return runs_[from * spread_.own_experts() + expert]; }
  const Run& run(int64_t from, int64_t expert) const { return runs_[from * spread_.own_experts() + expert]; }

  const ExpertSpread spread_;
  std::vector<int32_t> offsets_;
  std::vector<Run> runs_;  // by sender and expert
};

}  // namespace gptrain::model
