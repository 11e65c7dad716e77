#include "schedule/check_stages.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <utility>
#include <vector>

#include "base/enum_array.h"

namespace gptrain::inline schedule {
namespace {

class StagesChecker {
 public:
  explicit StagesChecker(std::span<const Schedule> stages)
      : schedules_(stages), next_(stages.size(), 0), links_(stages.size()) {}

  std::string run() {
    if (schedules_.empty()) return "no schedules";
    const int32_t count = schedules_[0].options.stages.shape.stages;
    if (std::cmp_not_equal(schedules_.size(), count))
      return fmt::format("{} schedules for {} stages", schedules_.size(), count);
    for (int32_t stage = 0; stage < count; ++stage) {
      Stages own = of(stage).options.stages;
      if (own.stage != stage) return fmt::format("schedule {} is of stage {}", stage, own.stage);
      own.stage = 0;
      if (own != schedules_[0].options.stages) return fmt::format("stage {} has another pipeline than stage 0", stage);
    }
    for (bool moved = true; moved && fault_.empty();) {
      moved = false;
      for (int32_t stage = 0; stage < count && fault_.empty(); ++stage) {
        while (!ended(stage) && fault_.empty() && step(stage)) moved = true;
      }
      if (!moved && fault_.empty()) moved = meet();
    }
    if (fault_.empty()) find_waiting();
    if (fault_.empty()) find_unmatched();
    return fault_;
  }

 private:
  // Transfers from a stage to one neighbour that have begun, in order. Send i and receive i must be the same message.
  struct Link {
    std::vector<StageMessage> sends, receives;
  };

  const Schedule& of(int32_t stage) const { return schedules_[stage]; }
  size_t& next(int32_t stage) { return next_[stage]; }
  const Action& action(int32_t stage) { return of(stage).actions[next(stage)]; }
  bool ended(int32_t stage) { return next(stage) == of(stage).actions.size(); }
  Link& link(const Route& route) { return links_[route.from][route.way]; }

  std::string action_text(int32_t stage) {
    const Action& a = action(stage);
    return fmt::format("stage {}, action {} ({} of micro-batch {}, unit {})", stage, next(stage), action_name(a.kind),
                       a.micro_batch, a.unit);
  }

  static std::string text(const StageMessage& message) {
    return fmt::format("the {} of chunk {}, micro-batch {}", message.gradient ? "input's gradient" : "output",
                       message.chunk, message.micro_batch);
  }

  // Plays the stage's next action if it need not wait. Returns whether it did.
  bool step(int32_t stage) {
    const Action& a = action(stage);
    if (a.kind == ActionKind::sum_tied || a.kind == ActionKind::norm) return false;
    if (const std::optional<Transfer> transfer = transfer_of(a.kind)) {
      if (!play(stage, *transfer, message_of(of(stage).options.stages, a.kind, a.micro_batch, a.unit))) return false;
    }
    ++next(stage);
    return true;
  }

  bool play(int32_t stage, const Transfer& transfer, const StageMessage& message) {
    const Route route = route_of(of(stage).options.stages, message);
    if (route.from == route.to || (transfer.sends ? route.from : route.to) != stage) {
      fault_ =
          fmt::format("{}: {} goes from stage {} to stage {}", action_text(stage), text(message), route.from, route.to);
      return false;
    }
    std::vector<StageMessage>& own = transfer.sends ? link(route).sends : link(route).receives;
    const std::vector<StageMessage>& others = transfer.sends ? link(route).receives : link(route).sends;
    if (!transfer.begins) {
      const auto begun = std::find(own.rbegin(), own.rend(), message);
      if (begun != own.rend()) return own.rend() - begun <= std::ssize(others);
      fault_ = fmt::format("{}: it has not begun", action_text(stage));
      return false;
    }
    if (own.size() < others.size() && others[own.size()] != message) {
      const StageMessage& other = others[own.size()];
      fault_ = fmt::format("{}: stage {} {} {} there", action_text(stage), transfer.sends ? route.to : route.from,
                           transfer.sends ? "receives" : "sends", text(other));
      return false;
    }
    own.push_back(message);
    return true;
  }

  bool is_at(int32_t stage, ActionKind kind) { return !ended(stage) && action(stage).kind == kind; }

  // Plays sum_tied or norm on all their stages if all have reached it. Returns whether any stage moved.
  bool meet() {
    const auto count = static_cast<int32_t>(schedules_.size());
    int32_t at_sum = 0, holders = 0, at_norm = 0;
    for (int32_t stage = 0; stage < count; ++stage) {
      holders += of(stage).options.holds(0) ? 1 : 0;
      at_sum += is_at(stage, ActionKind::sum_tied) ? 1 : 0;
      at_norm += is_at(stage, ActionKind::norm) ? 1 : 0;
    }
    const bool sums = at_sum > 0 && at_sum == holders;
    if (!sums && at_norm < count) return false;
    for (int32_t stage = 0; stage < count; ++stage)
      next(stage) += is_at(stage, sums ? ActionKind::sum_tied : ActionKind::norm) ? 1 : 0;
    return true;
  }

  void find_waiting() {
    for (int32_t stage = 0; std::cmp_less(stage, schedules_.size()) && fault_.empty(); ++stage) {
      if (ended(stage)) continue;
      const Action& a = action(stage);
      const std::optional<Transfer> transfer = transfer_of(a.kind);
      fault_ = action_text(stage) + ": waits for ever for ";
      if (!transfer) {
        fault_ += "the other stages";
      } else {
        const Stages& stages = of(stage).options.stages;
        const Route route = route_of(stages, message_of(stages, a.kind, a.micro_batch, a.unit));
        fault_ += fmt::format("stage {} to {}", transfer->sends ? route.to : route.from,
                              transfer->sends ? "receive" : "send");
      }
    }
  }

  void find_unmatched() {
    for (size_t stage = 0; stage < links_.size(); ++stage) {
      for (const Link& link : links_[stage]) {
        if (link.sends.size() == link.receives.size()) continue;
        const bool sent = link.sends.size() > link.receives.size();
        const StageMessage& message = sent ? link.sends[link.receives.size()] : link.receives[link.sends.size()];
        fault_ = fmt::format("{} leaves stage {} and is never {}", text(message), stage, sent ? "received" : "sent");
        return;
      }
    }
  }

  const std::span<const Schedule> schedules_;
  std::vector<size_t> next_;                           // by stage: index of its next action
  std::vector<EnumArray<Way, Link, num_ways>> links_;  // by sending stage and Way
  std::string fault_;
};

}  // namespace

std::string check_stages(std::span<const Schedule> stages) { return StagesChecker(stages).run(); }

}  // namespace gptrain::schedule
