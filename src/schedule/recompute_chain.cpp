#include "schedule/recompute_chain.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace gptrain::inline schedule {

int64_t ChainUnit::written_bytes() const { return std::max(saved_bytes, part_bytes < 0 ? 0 : part_bytes + rest_bytes); }

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

}  // namespace

// Dynamic programming tables. A segment is a run of units first to last. Solving one assumes that the input of its
// first unit is in memory, and covers everything up to the end of the first unit's backward pass.
class ChainSolver::Tables {
 public:
  Tables(const Chain& chain, int64_t most, int32_t resolution)
      : chain_(chain),
        n_(static_cast<int32_t>(chain.units.size())),
        longest_(n_ <= longest_whole_chain ? n_ : longest_segment),
        piece_(std::max<int64_t>(1, (most + resolution - 1) / resolution)),
        pieces_(most / piece_),
        pass_bytes_(n_ * longest_),
        pass_seconds_(n_ * longest_),
        recompute_(n_ * longest_) {
    for (const ChainUnit& u : chain.units) largest_stream_ = std::max(largest_stream_, u.output_bytes);
    for (int32_t first = 0; first < n_; ++first) weigh_passes(first);
    for (int32_t length = 1; length <= longest_; ++length) {
      for (int32_t first = 0; first + length <= n_; ++first) solve_recompute(first, first + length - 1);
    }
  }

  std::optional<UnitChoices> best(int64_t budget, std::optional<double> price) {
    price_ = price;
    std::optional<UnitChoices> best;
    double least = never;
    // All micro-batches in flight keep equally many bytes: the bytes of the others reduce the budget of this one.
    const int64_t others = chain_.in_flight - 1;
    const int64_t step = others == 0 ? budget + 1 : piece_ == 1 ? 1 : std::max<int64_t>(1, budget / rooms_tried);
    for (int64_t available = budget; available >= 0; available -= step) {
      const int64_t most_kept = others == 0 ? budget : (budget - available) / others;
      solve_forward(available, most_kept);
      std::vector<Label>& ends = labels_.back();
      std::erase_if(ends, [&](const Label& end) { return end.held_bytes > most_kept; });
      const auto found = std::min_element(ends.begin(), ends.end(),
                                          [](const Label& a, const Label& b) { return a.seconds < b.seconds; });
      if (found == ends.end() || found->seconds >= least) continue;
      least = found->seconds;
      best = choices_of(*found, available);
    }
    return best;
  }

 private:
  static constexpr int64_t rooms_tried = 64;
  static constexpr size_t most_labels = 1000;
  static constexpr int64_t fine_parts = 4096;
  static constexpr int32_t longest_whole_chain = 128;
  static constexpr int32_t longest_segment = 64;

  enum class How : uint8_t { keep, part, recompute };

  // Choices for the units before one unit, in the forward pass.
  struct Label {
    int64_t held_bytes = 0;  // bytes that they keep, the input of the unit included
    double seconds = 0;
    int32_t from = -1;  // first unit of the last step; -1: there is no step yet
    size_t before = 0;  // index of the label at `from` that the step extends
    How how = How::keep;
    bool away = false;  // the record of `from` is offloaded, or with How::recompute its input
  };

  const ChainUnit& unit(int32_t i) const { return chain_.units[i]; }
  size_t at(int32_t first, int32_t last) const { return static_cast<size_t>(first * longest_ + last - first); }
  int64_t up(int64_t bytes) const { return (bytes + piece_ - 1) / piece_; }
  int64_t output_kept(int32_t i) const { return i + 1 < n_ ? unit(i).output_bytes : 0; }
  int64_t input_kept(int32_t i) const { return i > 0 ? unit(i - 1).output_bytes : 0; }
  bool may_go(int32_t i) const { return price_ && unit(i).copy_seconds >= 0; }
  // Returns the cost in seconds of copying the unit's input and `bytes` more bytes. REQUIRES: price_ is set.
  double copy_seconds(int32_t i, int64_t bytes) const {
    return *price_ * unit(i).copy_seconds * static_cast<double>(bytes + (i > 0 ? input_kept(i) : chain_.input_bytes));
  }

  // Computes bytes (except the input) and seconds of forward passes that start at `first` and keep nothing.
  void weigh_passes(int32_t first) {
    int64_t most = 0;
    double seconds = 0;
    for (int32_t last = first; last < std::min(n_, first + longest_); ++last) {
      most = std::max(most, (last > first ? unit(last - 1).output_bytes : 0) + unit(last).written_bytes() +
                                unit(last).output_bytes);
      seconds += unit(last).forward_seconds;
      pass_bytes_[at(first, last)] = most;
      pass_seconds_[at(first, last)] = seconds;
    }
  }

  // Computes the least seconds to recompute the segment for its backward passes, by the number of pieces of memory that
  // it may use besides its input.
  void solve_recompute(int32_t first, int32_t last) {
    std::vector<double>& least = recompute_[at(first, last)];
    least.assign(static_cast<size_t>(pieces_) + 1, never);
    for (int32_t i = first; i <= last; ++i)
      if (unit(i).always_saved) return;
    const ChainUnit& u = unit(first);
    if (first == last) {
      for (int64_t m = up(u.saved_bytes + u.backward_bytes); m <= pieces_; ++m) least[m] = u.saved_seconds;
      return;
    }
    offer_recomputes(first, last, least);
  }

  // Lowers each of `least` to the seconds of best_recompute. Each decision is offered for all sizes in one loop.
  void offer_recomputes(int32_t first, int32_t last, std::vector<double>& least) const {
    const ChainUnit& u = unit(first);
    const int64_t forward = up(u.written_bytes() + u.output_bytes + chain_.gradient_bytes);
    const auto offer = [&](int64_t least_pieces, double seconds, int32_t begin, int64_t held_bytes, const auto& more) {
      const double* const rest = recompute_[at(begin, last)].data();
      for (int64_t m = std::max(least_pieces, held_bytes); m <= pieces_; ++m)
        least[m] = std::min(least[m], seconds + rest[m - held_bytes] + more(m));
    };
    const auto nothing = [](int64_t) { return 0.0; };
    offer(std::max(forward, up(u.saved_bytes + u.backward_bytes)), u.forward_seconds, first + 1,
          up(u.saved_bytes + u.output_bytes), nothing);
    if (u.part_bytes >= 0) {
      offer(std::max(forward, up(u.part_bytes + u.rest_bytes + u.backward_bytes)), u.forward_seconds + u.rest_seconds,
            first + 1, up(u.part_bytes + u.output_bytes), nothing);
    }
    for (int32_t split = first; split < last; ++split) {
      const double* const recomputed = recompute_[at(first, split)].data();
      offer(up(pass_bytes_[at(first, split)] + chain_.gradient_bytes), pass_seconds_[at(first, split)], split + 1,
            up(unit(split).output_bytes), [=](int64_t m) { return recomputed[m]; });
    }
  }

  // The first decision for a segment: save all or part of its first unit, or run forward and save only a later output.
  struct Step {
    How how = How::keep;
    int32_t split = -1;  // How::recompute: the unit whose output is saved
  };
  std::pair<double, Step> best_recompute(int32_t first, int32_t last, int64_t pieces) const {
    std::pair<double, Step> best{never, {}};
    const auto offer = [&best](double seconds, Step step) {
      if (seconds < best.first) best = {seconds, step};
    };
    const ChainUnit& u = unit(first);
    const int64_t forward = up(u.written_bytes() + u.output_bytes + chain_.gradient_bytes);
    const auto rest = [&](int32_t begin, int64_t held_bytes) {
      return pieces < held_bytes ? never : recompute_[at(begin, last)][pieces - held_bytes];
    };
    if (pieces >= std::max(forward, up(u.saved_bytes + u.backward_bytes)))
      offer(u.forward_seconds + rest(first + 1, up(u.saved_bytes + u.output_bytes)), {How::keep});
    if (u.part_bytes >= 0 && pieces >= std::max(forward, up(u.part_bytes + u.rest_bytes + u.backward_bytes)))
      offer(u.forward_seconds + u.rest_seconds + rest(first + 1, up(u.part_bytes + u.output_bytes)), {How::part});
    for (int32_t split = first; split < last; ++split) {
      if (pieces < up(pass_bytes_[at(first, split)] + chain_.gradient_bytes)) break;
      offer(pass_seconds_[at(first, split)] + rest(split + 1, up(unit(split).output_bytes)) +
                recompute_[at(first, split)][pieces],
            {How::recompute, split});
    }
    return best;
  }

  // Returns the indices of labels that no other label beats in both bytes and seconds, by rising bytes. Thins them out
  // evenly to most_labels.
  static std::vector<size_t> best_of(const std::vector<Label>& labels) {
    std::vector<size_t> order(labels.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&labels](size_t a, size_t b) {
      return std::pair(labels[a].held_bytes, labels[a].seconds) < std::pair(labels[b].held_bytes, labels[b].seconds);
    });
    double quickest = never;
    std::erase_if(order, [&](size_t l) {
      if (labels[l].seconds >= quickest) return true;
      quickest = labels[l].seconds;
      return false;
    });
    if (order.size() <= most_labels) return order;
    std::vector<size_t> some;
    for (size_t i = 0; i < most_labels; ++i) some.push_back(order[i * (order.size() - 1) / (most_labels - 1)]);
    return some;
  }

  // Computes labels_: choices for the forward pass that keep at most most_kept bytes at its end and have at most
  // `available` bytes alive at any time. Only the fastest of labels with equally many saved bytes stays. Bytes are
  // compared in units finer than pieces if that is affordable.
  void solve_forward(int64_t available, int64_t most_kept) {
    labels_.assign(static_cast<size_t>(n_) + 1, {});
    labels_.front().push_back({});
    // A unit's input counts until the unit is offloaded.
    const int64_t most = std::min(available, most_kept + (price_ ? largest_stream_ : 0));
    const bool has_time = chain_.in_flight == 1 && longest_ == n_;
    const int64_t part = has_time ? std::max<int64_t>(1, most / fine_parts) : piece_;
    // By unit and by saved bytes / part: index of the label; -1: there is none.
    std::vector<std::vector<int32_t>> known(static_cast<size_t>(n_) + 1);
    for (int32_t i = 0; i < n_; ++i) {
      std::vector<int32_t>().swap(known[i]);
      for (const size_t l : best_of(labels_[i])) {
        const Label label = labels_[i][l];
        const auto offer = [&](int32_t to, int64_t bytes, double seconds, How how, bool away) {
          const int64_t held_bytes = label.held_bytes + bytes;
          if (held_bytes > most) return;
          std::vector<Label>& there = labels_[to];
          std::vector<int32_t>& by_part = known[to];
          if (by_part.empty()) by_part.assign(static_cast<size_t>(most / part) + 1, -1);
          int32_t& slot = by_part[held_bytes / part];
          const Label next{held_bytes, label.seconds + seconds, i, l, how, away};
          if (slot < 0) {
            slot = static_cast<int32_t>(there.size());
            there.push_back(next);
          } else if (Label& old = there[slot];
                     std::pair(next.seconds, next.held_bytes) < std::pair(old.seconds, old.held_bytes)) {
            old = next;
          }
        };
        const ChainUnit& u = unit(i);
        const int64_t free = available - label.held_bytes;
        const bool runs = free >= u.written_bytes() + u.output_bytes;
        // Offers the step with its values saved on the device, and with them and the unit's input copied to the host.
        const auto offer_both = [&](int32_t to, int64_t left, double seconds, How how) {
          const int64_t output = output_kept(to - 1);
          offer(to, left + output, seconds, how, false);
          if (may_go(i)) offer(to, output - input_kept(i), seconds + copy_seconds(i, left), how, true);
        };
        if (runs && free >= u.saved_bytes + u.backward_bytes) offer_both(i + 1, u.saved_bytes, 0, How::keep);
        if (runs && !u.always_saved && u.part_bytes >= 0 && free >= u.part_bytes + u.rest_bytes + u.backward_bytes)
          offer_both(i + 1, u.part_bytes, u.rest_seconds, How::part);
        for (int32_t split = i; split < std::min(n_, i + longest_) && !unit(split).always_saved; ++split) {
          if (free < pass_bytes_[at(i, split)]) break;
          const double seconds = recompute_[at(i, split)][free / piece_];
          if (seconds < never) offer_both(split + 1, 0, seconds, How::recompute);
        }
      }
    }
  }

  UnitChoices choices_of(const Label& end, int64_t available) const {
    UnitChoices choices(chain_.units.size());
    Label label = end;
    for (int32_t to = n_; label.from >= 0;) {
      const Label before = labels_[label.from][label.before];
      if (label.how == How::part) {
        choices[label.from] = {true, label.from};
      } else if (label.how == How::recompute) {
        choose_recompute(choices, label.from, to - 1, (available - before.held_bytes) / piece_, label.from);
      }
      if (label.away)
        choices[label.from].offload.part = label.how == How::recompute ? OffloadedPart::input : OffloadedPart::record;
      to = label.from;
      label = before;
    }
    return choices;
  }

  // Sets the choices for a segment that is recomputed. `begin`: the unit at which the forward pass over it begins.
  void choose_recompute(UnitChoices& choices, int32_t first, int32_t last, int64_t pieces, int32_t begin) const {
    if (first == last) {
      choices[last].recompute_from = begin;
      return;
    }
    const Step step = best_recompute(first, last, pieces).second;
    const ChainUnit& u = unit(first);
    switch (step.how) {
      case How::keep:
        return choose_recompute(choices, first + 1, last, pieces - up(u.saved_bytes + u.output_bytes), begin);
      case How::part:
        choices[first] = {true, first};
        return choose_recompute(choices, first + 1, last, pieces - up(u.part_bytes + u.output_bytes), begin);
      case How::recompute:
        choose_recompute(choices, step.split + 1, last, pieces - up(unit(step.split).output_bytes), begin);
        return choose_recompute(choices, first, step.split, pieces, first);
    }
  }

  const Chain chain_;
  int64_t largest_stream_ = 0;
  std::optional<double> price_;  // price of the current call of best()
  const int32_t n_;
  const int32_t longest_;                       // most units in a segment
  const int64_t piece_, pieces_;                // bytes of a piece; number of pieces
  std::vector<int64_t> pass_bytes_;             // by segment (at)
  std::vector<double> pass_seconds_;            // by segment
  std::vector<std::vector<double>> recompute_;  // by segment, by pieces of memory
  std::vector<std::vector<Label>> labels_;      // by the unit that comes next
};

ChainSolver::ChainSolver(const Chain& chain, int64_t most_bytes, int32_t resolution)
    : tables_(std::make_unique<Tables>(chain, std::max<int64_t>(most_bytes, 1), resolution)) {}
ChainSolver::~ChainSolver() = default;
ChainSolver::ChainSolver(ChainSolver&&) noexcept = default;

std::optional<UnitChoices> ChainSolver::best(int64_t budget_bytes, std::optional<double> price) {
  return tables_->best(budget_bytes, price);
}

double recompute_seconds(const Chain& chain, const UnitChoices& choices) {
  double seconds = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].recompute_from < 0) continue;
    for (auto recomputed = static_cast<size_t>(choices[i].recompute_from); recomputed < i; ++recomputed)
      seconds += chain.units[recomputed].forward_seconds;
    seconds += choices[i].saves_part ? chain.units[i].rest_seconds : chain.units[i].saved_seconds;
  }
  return seconds;
}

}  // namespace gptrain::schedule
