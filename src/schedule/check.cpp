#include <array>
#include <fmt/format.h>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "schedule/schedule.h"

namespace gptrain {
namespace {

// Plays a schedule on the names of things instead of the things: each slot remembers whose content it holds.
class Checker {
 public:
  explicit Checker(const Schedule& schedule)
      : schedule_(schedule),
        head_(schedule.num_units - 1),
        replay_(slots(schedule.replay_slots)),
        gradient_(slots(schedule.gradient_slots)),
        carrier_(slots(schedule.carrier_slots)),
        activation_(static_cast<size_t>(schedule.activation_slots), -1) {
    weights_.fill(-1);
    arriving_.fill(-1);
    summed_.fill(free_slot);
  }

  std::string run() {
    for (size_t i = 0; i < schedule_.actions.size() && fault_.empty(); ++i) {
      step(schedule_.actions[i]);
      if (!fault_.empty()) {
        const Action& a = schedule_.actions[i];
        fault_ = fmt::format("action {} ({} of micro-batch {}, unit {}): {}", i, action_name(a.kind), a.micro_batch,
                             a.unit, fault_);
      }
    }
    if (fault_.empty()) check_complete();
    return fault_;
  }

 private:
  using Content = std::pair<int32_t, int32_t>;  // (micro-batch, unit); {-1, -1}: free

  static constexpr Content free_slot{-1, -1};

  static std::vector<Content> slots(int32_t n) { return std::vector<Content>(static_cast<size_t>(n), free_slot); }

  bool require(bool condition, const std::string& fault) {
    if (!condition && fault_.empty()) fault_ = fault;
    return condition;
  }

  // True where `slot` indexes a pool of `size` records.
  bool in_pool(int32_t slot, size_t size, const char* pool) {
    return require(slot >= 0 && static_cast<size_t>(slot) < size, fmt::format("{} slot {} of {}", pool, slot, size));
  }

  void claim(std::vector<Content>& pool, int32_t slot, Content content, const char* name) {
    if (!in_pool(slot, pool.size(), name)) return;
    Content& held = pool[static_cast<size_t>(slot)];
    require(held == free_slot || held == content,
            fmt::format("{} slot {} still holds micro-batch {}, unit {}", name, slot, held.first, held.second));
    held = content;
  }

  void expect(const std::vector<Content>& pool, int32_t slot, Content content, const char* name) {
    if (!in_pool(slot, pool.size(), name)) return;
    const Content held = pool[static_cast<size_t>(slot)];
    require(held == content,
            fmt::format("{} slot {} holds micro-batch {}, unit {}", name, slot, held.first, held.second));
  }

  bool recomputed(int32_t unit) const { return schedule_.recomputed[static_cast<size_t>(unit)]; }

  bool done(ActionKind kind, int32_t m, int32_t unit) const { return done_.contains({kind, m, unit}); }

  void step(const Action& a) {
    const bool repeats = a.kind == ActionKind::gather || a.kind == ActionKind::await_weights;
    if (is_of_micro_batch(a.kind)) {
      if (!in_pool(a.activation, activation_.size(), "activation")) return;
      int32_t& owner = activation_[static_cast<size_t>(a.activation)];
      if (a.kind == ActionKind::forward && a.unit == 0) {
        require(owner == -1, fmt::format("activation slot {} still holds micro-batch {}", a.activation, owner));
        owner = a.micro_batch;
      }
      require(owner == a.micro_batch, fmt::format("activation slot {} holds micro-batch {}", a.activation, owner));
    }
    require(done_.insert({a.kind, a.micro_batch, a.unit}).second || repeats, "done twice");
    check_parameters(a);
    switch (a.kind) {
      case ActionKind::forward:
        return forward(a);
      case ActionKind::loss:
        return loss(a);
      case ActionKind::evaluate:
        require(done(ActionKind::forward, a.micro_batch, head_), "before the head's forward");
        return;
      case ActionKind::recompute:
        claim(replay_, a.replay, {a.micro_batch, a.unit}, "replay");
        return;
      case ActionKind::backward_input:
        return backward_input(a);
      case ActionKind::backward_weight:
        return backward_weight(a);
      case ActionKind::backward:
        backward_input(a);
        done_.insert({ActionKind::backward_input, a.micro_batch, a.unit});
        return backward_weight(a);
      case ActionKind::gather:
        return gather(a);
      case ActionKind::await_weights:
        return await_weights(a);
      case ActionKind::reduce:
        return reduce(a);
      case ActionKind::await_gradients:
        require(done(ActionKind::reduce, a.micro_batch, a.unit), "before the sum begins");
        if (fault_.empty()) summed_[slot(a.unit)] = free_slot;
        return;
      case ActionKind::norm:
        return norm();
      case ActionKind::update:
        require(done(ActionKind::norm, -1, -1), "before the norm");
        return;
    }
  }

  static bool is_of_micro_batch(ActionKind kind) {
    switch (kind) {
      case ActionKind::gather:
      case ActionKind::await_weights:
      case ActionKind::reduce:
      case ActionKind::await_gradients:
      case ActionKind::norm:
      case ActionKind::update:
        return false;
      default:
        return true;
    }
  }

  size_t slot(int32_t unit) const { return static_cast<size_t>(parameter_slot(unit, schedule_.num_units)); }

  void check_parameters(const Action& a) {
    if (!is_of_micro_batch(a.kind)) return;
    const bool uses_head_matrix = a.kind == ActionKind::loss || a.kind == ActionKind::evaluate;
    const bool whole_gradients = a.kind == ActionKind::loss || a.kind == ActionKind::backward_input ||
                                 a.kind == ActionKind::backward_weight || a.kind == ActionKind::backward;
    check_parameters_of(a.unit, a.kind == ActionKind::backward_weight, whole_gradients);
    if (uses_head_matrix && schedule_.tied_head) check_parameters_of(0, false, whole_gradients);
  }

  void check_parameters_of(int32_t unit, bool without_weights, bool whole_gradients) {
    if (schedule_.zero == 3 && !without_weights)
      require(weights_[slot(unit)] == unit, fmt::format("the weights of unit {} are not there", unit));
    if ((schedule_.zero == 1 || schedule_.zero == 2) && !without_weights)
      require(done(ActionKind::await_weights, -1, unit),
              fmt::format("the updated weights of unit {} are not awaited", unit));
    if (schedule_.zero >= 2 && whole_gradients) {
      const Content summed = summed_[slot(unit)];
      require(summed == free_slot, fmt::format("the gradients of micro-batch {}, unit {} are still being summed there",
                                               summed.first, summed.second));
    }
  }

  void gather(const Action& a) {
    if (schedule_.zero != 3) {
      require(done(ActionKind::update, -1, a.unit), "before the update");
      return;
    }
    weights_[slot(a.unit)] = -1;
    arriving_[slot(a.unit)] = a.unit;
  }

  void await_weights(const Action& a) {
    if (schedule_.zero != 3) return;
    require(arriving_[slot(a.unit)] == a.unit, "before the gathering begins");
    weights_[slot(a.unit)] = a.unit;
  }

  void norm() {
    for (int32_t unit = 0; unit <= head_; ++unit) {
      const int32_t first = schedule_.zero < 2 ? schedule_.micro_batches - 1 : 0;
      for (int32_t m = first; m < schedule_.micro_batches; ++m)
        require(done(ActionKind::await_gradients, m, unit), "before all units are reduced");
    }
  }

  void forward(const Action& a) {
    require(a.unit == 0 || done(ActionKind::forward, a.micro_batch, a.unit - 1), "before the unit before it");
    if (!recomputed(a.unit)) return;
    claim(replay_, a.replay, {a.micro_batch, a.unit}, "replay");
    if (fault_.empty()) replay_[static_cast<size_t>(a.replay)] = free_slot;
  }

  void loss(const Action& a) {
    require(a.unit == head_ && done(ActionKind::forward, a.micro_batch, head_), "before the head's forward");
    claim(gradient_, a.gradient, {a.micro_batch, head_}, "gradient");
  }

  void backward_input(const Action& a) {
    const Content content{a.micro_batch, a.unit};
    require(a.unit > 0, "the embedding has no input gradient");
    if (a.unit == head_) {
      require(done(ActionKind::loss, a.micro_batch, head_), "before the loss");
      expect(gradient_, a.gradient, content, "gradient");
    } else {
      expect(carrier_, a.d_output, content, "carrier");
      claim(gradient_, a.gradient, content, "gradient");
      if (recomputed(a.unit)) expect(replay_, a.replay, content, "replay");
    }
    claim(carrier_, a.d_input, {a.micro_batch, a.unit - 1}, "carrier");
  }

  void backward_weight(const Action& a) {
    const Content content{a.micro_batch, a.unit};
    if (a.unit < head_) expect(carrier_, a.d_output, content, "carrier");
    if (a.unit > 0) {
      require(done(ActionKind::backward_input, a.micro_batch, a.unit), "before its input gradient");
      expect(gradient_, a.gradient, content, "gradient");
      if (recomputed(a.unit)) expect(replay_, a.replay, content, "replay");
    }
    if (!fault_.empty()) return;
    if (a.unit < head_) carrier_[static_cast<size_t>(a.d_output)] = free_slot;
    if (a.unit > 0) gradient_[static_cast<size_t>(a.gradient)] = free_slot;
    if (recomputed(a.unit)) replay_[static_cast<size_t>(a.replay)] = free_slot;
    if (++weights_done_[a.micro_batch] == schedule_.num_units) activation_[static_cast<size_t>(a.activation)] = -1;
  }

  void reduce(const Action& a) {
    for (int32_t m = schedule_.zero < 2 ? 0 : a.micro_batch; m <= a.micro_batch; ++m) {
      require(done(ActionKind::backward_weight, m, a.unit) || done(ActionKind::backward, m, a.unit),
              fmt::format("before the gradients of micro-batch {}", m));
    }
    if (!schedule_.sums_use_slots()) return;
    Content& summed = summed_[slot(a.unit)];
    require(summed == free_slot,
            fmt::format("the slot still holds the sum of micro-batch {}, unit {}", summed.first, summed.second));
    summed = {a.micro_batch, a.unit};
  }

  void check_complete() {
    const bool training = done(ActionKind::norm, -1, -1);
    for (int32_t m = 0; m < schedule_.micro_batches; ++m) {
      require(done(training ? ActionKind::loss : ActionKind::evaluate, m, head_),
              fmt::format("micro-batch {} has no loss", m));
    }
    for (int32_t unit = 0; training && unit <= head_; ++unit) {
      require(done(ActionKind::update, -1, unit), fmt::format("unit {} is never updated", unit));
    }
  }

  const Schedule& schedule_;
  const int32_t head_;
  std::vector<Content> replay_, gradient_, carrier_;
  std::vector<int32_t> activation_;
  std::array<int32_t, num_parameter_slots> weights_{}, arriving_{};  // by slot: the unit whose weights it holds
  std::array<Content, num_parameter_slots> summed_{};                // by slot: the gradients that a sum still reads
  std::set<std::tuple<ActionKind, int32_t, int32_t>> done_;
  std::map<int32_t, int32_t> weights_done_;  // micro-batch -> units whose weight gradients are done
  std::string fault_;
};

}  // namespace

std::string check(const Schedule& schedule) { return Checker(schedule).run(); }

}  // namespace gptrain
