#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/parallelism.h"
#include "schedule/schedule.h"

namespace gptrain::inline schedule {
namespace {

// Plays a schedule on the states of its buffers, without their values.
class Checker {
 public:
  explicit Checker(const Schedule& schedule)
      : schedule_(schedule),
        head_(schedule.num_layers() - 1),
        content_(schedule.buffers.size()),
        sending_(schedule.buffers.size(), false),
        last_weight_gradient_(schedule.options.units.size(), -1),
        phases_begun_(static_cast<size_t>(schedule.options.micro_batches + 1) * schedule.options.units.size()),
        done_(static_cast<size_t>(num_action_kinds) * static_cast<size_t>(schedule.options.micro_batches + 1) *
                  (schedule.options.units.size() + 1),
              false) {}

  std::string run() {
    for (size_t i = 0; i < schedule_.actions.size() && fault_.empty(); ++i) {
      const Action& a = schedule_.actions[i];
      step(a);
      if (!fault_.empty())
        fault_ = fmt::format("action {} ({} of micro-batch {}, unit {}): {}", i, action_name(a.kind), a.micro_batch,
                             a.unit, fault_);
    }
    if (fault_.empty()) check_lifetimes();
    if (fault_.empty()) check_complete();
    return fault_;
  }

 private:
  // State of a buffer. A gather, receive or copy into it is under way from the action that begins it to the one that
  // awaits it.
  enum class Content : uint8_t { nothing, under_way, whole, being_summed };

  // Records the first fault. Formats a text only then, as a schedule may have millions of actions.
  template <typename... Args>
  bool require(bool condition, fmt::format_string<Args...> fault, Args&&... args) {
    if (!condition && fault_.empty()) fault_ = fmt::format(fault, std::forward<Args>(args)...);
    return condition;
  }

  Content& content(int32_t buffer) { return content_[buffer]; }
  size_t place_in_done(ActionKind kind, int32_t m, int32_t unit) const {
    const auto micro_batches = static_cast<size_t>(schedule_.options.micro_batches + 1);
    return (static_cast<size_t>(kind) * micro_batches + static_cast<size_t>(m + 1)) *
               (schedule_.options.units.size() + 1) +
           static_cast<size_t>(unit + 1);
  }
  bool done(ActionKind kind, int32_t m, int32_t unit) const { return done_[place_in_done(kind, m, unit)]; }
  int8_t& phases_begun(const Action& sum) {
    const auto units = schedule_.options.units.size();
    return phases_begun_[static_cast<size_t>(sum.micro_batch + 1) * units + static_cast<size_t>(sum.unit)];
  }
  bool has_weight_gradients(int32_t m, int32_t unit) const {
    return done(ActionKind::backward_weight, m, unit) || done(ActionKind::backward, m, unit);
  }

  // Whether all gradients of a micro-batch exist. On a last stage that only holds a tied table, the loss computes them.
  bool has_all_gradients(int32_t m, int32_t unit) const {
    if (!schedule_.options.stages.runs(unit)) return done(ActionKind::loss, m, head_);
    return has_weight_gradients(m, unit);
  }

  // Returns the kind, micro-batch and unit that the operand's buffer must have.
  Buffer expected(const Action& a, Operand operand) const {
    const bool of_matrix = a.kind == ActionKind::loss || a.kind == ActionKind::evaluate;
    const int32_t owner = of_matrix && schedule_.options.tied_head ? 0 : a.unit;
    const int32_t m = a.micro_batch;
    switch (operand) {
      case Operand::batch:
        return {BufferKind::batch, m, -1};
      case Operand::input:
        return {BufferKind::stream, m, a.unit - 1};
      case Operand::output:
        return {BufferKind::stream, m, a.unit};
      case Operand::saved_for_recompute:
        return {BufferKind::saved_for_recompute, m, a.unit};
      case Operand::saved_for_input:
        return {BufferKind::saved_for_input, m, a.unit};
      case Operand::saved_for_weight:
        return {BufferKind::saved_for_weight, m, a.unit};
      case Operand::gradients:
        return {BufferKind::gradients, m, a.unit};
      case Operand::d_output:
        return {BufferKind::stream_gradient, m, a.unit};
      case Operand::d_input:
        return {BufferKind::stream_gradient, m, a.unit - 1};
      case Operand::weights:
        return {BufferKind::weights, -1, owner};
      case Operand::prepared_weights:
        return {BufferKind::prepared_weights, -1, a.unit};
      case Operand::whole_gradients:
        return {BufferKind::whole_gradients, m, owner};
      case Operand::host:
        return {BufferKind::offloaded, m, a.unit};
      case Operand::narrow_gradients:
      case Operand::count:
        break;
    }
    return {BufferKind::narrow_gradients, m, a.unit};
  }

  void step(const Action& a) {
    const bool repeats =
        a.kind == ActionKind::gather || a.kind == ActionKind::await_weights || a.kind == ActionKind::recompute_output;
    if (!require(
            a.micro_batch >= -1 && a.micro_batch < schedule_.options.micro_batches && a.unit >= -1 && a.unit <= head_,
            "there is no such micro-batch or unit"))
      return;
    const bool of_parameters = a.kind == ActionKind::gather || a.kind == ActionKind::await_weights ||
                               is_of_sum(a.kind) || a.kind == ActionKind::keep_gradients ||
                               a.kind == ActionKind::sum_tied || a.kind == ActionKind::update;
    require(a.unit < 0 || (of_parameters ? schedule_.options.holds(a.unit) : schedule_.options.stages.runs(a.unit)),
            "the unit is not on stage {}", schedule_.options.stages.stage);
    require(repeats || a.kind == ActionKind::reduce_on || !done(a.kind, a.micro_batch, a.unit), "done twice");
    done_[place_in_done(a.kind, a.micro_batch, a.unit)] = true;
    check_order(a);
    for (size_t i = 0; i < num_operands && fault_.empty(); ++i) check_operand(a, static_cast<Operand>(i));
    if (fault_.empty()) leave_content(a);
  }

  void check_operand(const Action& a, Operand operand) {
    const Access use = access(schedule_, a.kind, a.unit, operand);
    const int32_t index = a[operand];
    if (use == Access::none) {
      require(index < 0, "has no {}", operand_name(operand));
      return;
    }
    if (!require(index >= 0 && static_cast<size_t>(index) < schedule_.buffers.size(), "its {} is buffer {} of {}",
                 operand_name(operand), index, schedule_.buffers.size()))
      return;
    const Buffer& buffer = schedule_.buffers[index];
    const Buffer wanted = expected(a, operand);
    require(buffer.kind == wanted.kind && buffer.unit == wanted.unit && buffer.micro_batch == wanted.micro_batch,
            "its {} is {} of micro-batch {}, unit {}", operand_name(operand), buffer_name(buffer.kind),
            buffer.micro_batch, buffer.unit);
    const Content there = content(index);
    if (is_async(a.kind)) return;
    if (use != Access::write)
      require(there == Content::whole, "its {} {}", operand_name(operand),
              there == Content::under_way ? "is not awaited" : "is not there");
    require(there != Content::being_summed, "its {} is still being summed", operand_name(operand));
    require(use == Access::read || !sending_[index], "its {} is still being sent", operand_name(operand));
  }

  static bool is_of_sum(ActionKind kind) {
    return kind == ActionKind::reduce || kind == ActionKind::reduce_on || kind == ActionKind::await_gradients;
  }
  static bool is_async(ActionKind kind) {
    return transfer_of(kind).has_value() || kind == ActionKind::gather || kind == ActionKind::await_weights ||
           is_of_sum(kind) || copies_record(kind);
  }

  void leave_content(const Action& a) {
    for (size_t i = 0; i < num_operands; ++i) {
      const auto operand = static_cast<Operand>(i);
      const Access use = access(schedule_, a.kind, a.unit, operand);
      if (use == Access::none) continue;
      Content& left = content(a[operand]);
      if (const std::optional<Transfer> transfer = transfer_of(a.kind)) {
        leave_transfer(*transfer, a[operand]);
      } else if (copies_record(a.kind)) {
        leave_copy(a.kind, use, a[operand]);
      } else if (a.kind == ActionKind::gather) {
        left = Content::under_way;
      } else if (a.kind == ActionKind::await_weights) {
        require(left == Content::under_way, "before the gathering begins");
        left = Content::whole;
      } else if (a.kind == ActionKind::reduce) {
        require(operand == Operand::narrow_gradients || left == Content::whole, "before its gradients");
        left = Content::being_summed;
      } else if (a.kind == ActionKind::reduce_on) {
        require(left == Content::being_summed, "its {} is not being summed", operand_name(operand));
      } else if (a.kind == ActionKind::await_gradients) {
        left = Content::whole;
      } else if (use != Access::read) {
        left = Content::whole;
      }
    }
  }

  void leave_transfer(const Transfer& transfer, int32_t buffer) {
    Content& left = content(buffer);
    const auto index = static_cast<size_t>(buffer);
    if (transfer.sends) {
      require(left == Content::whole, "what it sends is not there");
      require(sending_[index] != transfer.begins, "its send has {}", transfer.begins ? "begun before" : "not begun");
      sending_[index] = transfer.begins;
    } else {
      require(left == (transfer.begins ? Content::nothing : Content::under_way), "its receive {}",
              transfer.begins ? "has begun before" : "has not begun");
      left = transfer.begins ? Content::under_way : Content::whole;
    }
  }

  // Checks one side of a copy. The side that is read keeps its content, but must not be written until the copy ends.
  void leave_copy(ActionKind kind, Access use, int32_t buffer) {
    const bool begins = kind == ActionKind::offload || kind == ActionKind::fetch;
    Content& left = content(buffer);
    if (use == Access::read) {
      require(left == Content::whole, "what it copies is not there");
      require(sending_[buffer] != begins, "its copy has {}", begins ? "begun before" : "not begun");
      sending_[buffer] = begins;
    } else {
      require(left == (begins ? Content::nothing : Content::under_way), "its copy {}",
              begins ? "has begun before" : "has not begun");
      left = begins ? Content::under_way : Content::whole;
    }
  }

  // Checks orders of actions that do not follow from their buffers.
  void check_order(const Action& a) {
    const ParameterFlow& flow = schedule_.options.flow;
    const bool reads_weights = !is_async(a.kind) && a.unit >= 0 && a.kind != ActionKind::backward_weight &&
                               a.kind != ActionKind::keep_gradients && a.kind != ActionKind::sum_tied &&
                               a.kind != ActionKind::update && a.kind != ActionKind::average;
    if (reads_weights && flow.weights_return) {
      const bool matrix = (a.kind == ActionKind::loss || a.kind == ActionKind::evaluate) && schedule_.options.tied_head;
      for (const int32_t unit : {a.unit, matrix ? 0 : a.unit})
        require(done(ActionKind::await_weights, -1, unit), "the updated weights of unit {} are not awaited", unit);
    }
    switch (a.kind) {
      case ActionKind::backward_weight:
        require(schedule_.traits(a.unit).kind == UnitKind::embedding ||
                    done(ActionKind::backward_input, a.micro_batch, a.unit),
                "before its input gradient");
        return check_accumulation(a);
      case ActionKind::backward:
        return check_accumulation(a);
      case ActionKind::gather:
        require(flow.gathers_weights() || flow.updates_delayed || done(ActionKind::update, -1, a.unit),
                "before the update");
        require(!flow.updates_delayed || !done(ActionKind::update, -1, a.unit), "after the update, which writes them");
        require(flow.gathers_weights() || !schedule_.options.averages || done(ActionKind::average, -1, a.unit),
                "before the weights are averaged");
        return;
      case ActionKind::reduce:
        for (int32_t m = flow.sums_each_pass ? a.micro_batch : 0; m <= a.micro_batch; ++m)
          require(has_all_gradients(m, a.unit), "before the gradients of micro-batch {}", m);
        for (int32_t m = 0; schedule_.options.keeps_narrow && !flow.sums_each_pass && m < a.micro_batch; ++m)
          require(done(ActionKind::keep_gradients, m, a.unit), "before those of micro-batch {} are accumulated", m);
        phases_begun(a) = 1;
        return;
      case ActionKind::keep_gradients:
        require(!flow.sums_each_pass && a.micro_batch + 1 < schedule_.options.micro_batches,
                "it is the ranks' sum that is accumulated");
        require(has_all_gradients(a.micro_batch, a.unit), "before the gradients of micro-batch {}", a.micro_batch);
        require(a.micro_batch == 0 || done(ActionKind::keep_gradients, a.micro_batch - 1, a.unit),
                "before those of micro-batch {} are accumulated", a.micro_batch - 1);
        return;
      case ActionKind::reduce_on:
        require(done(ActionKind::reduce, a.micro_batch, a.unit), "before the sum begins");
        require(a.phase < schedule_.traits(a.unit).sum_phases, "its sum has no such phase");
        require(a.phase == phases_begun(a)++, "before the phase before it begins, or twice");
        return;
      case ActionKind::await_gradients:
        require(done(ActionKind::reduce, a.micro_batch, a.unit), "before the sum begins");
        require(phases_begun(a) == schedule_.traits(a.unit).sum_phases, "before the last phase of the sum begins");
        return;
      case ActionKind::sum_tied:
        require(schedule_.options.table_twice() && a.unit == 0, "there is one table");
        return check_all_summed(0);
      case ActionKind::norm:
        for (int32_t unit = 0; unit <= head_; ++unit) {
          if (schedule_.options.holds(unit)) check_all_summed(unit);
        }
        require(!schedule_.options.table_twice() || !schedule_.options.holds(0) || done(ActionKind::sum_tied, -1, 0),
                "before the tables' gradients are summed");
        require(std::find(sending_.begin(), sending_.end(), true) == sending_.end(), "before everything is sent");
        return;
      case ActionKind::update:
        require(done(ActionKind::norm, -1, -1), "before the norm");
        return;
      case ActionKind::average:
        require(done(ActionKind::update, -1, a.unit), "before the update");
        return;
      default:
        return;
    }
  }

  void check_all_summed(int32_t unit) {
    const int32_t first = schedule_.options.flow.sums_each_pass ? 0 : schedule_.options.micro_batches - 1;
    for (int32_t m = first; m < schedule_.options.micro_batches; ++m)
      require(done(ActionKind::await_gradients, m, unit), "before all units are summed");
  }

  // Checks that gradients are summed in micro-batch order: the first micro-batch overwrites, the others add.
  void check_accumulation(const Action& a) {
    int32_t& last = last_weight_gradient_[a.unit];
    require(a.micro_batch == last + 1, "after that of micro-batch {}", last);
    last = a.micro_batch;
  }

  void check_lifetimes() {
    Schedule played{.options = {}, .actions = schedule_.actions, .buffers = schedule_.buffers};
    set_lifetimes(played);
    for (size_t i = 0; i < played.buffers.size(); ++i) {
      const Buffer& says = schedule_.buffers[i];
      const Buffer& is = played.buffers[i];
      require(says.first == is.first && says.last == is.last,
              "buffer {} ({} of micro-batch {}, unit {}) lives from action {} to {}, not {} to {}", i,
              buffer_name(is.kind), is.micro_batch, is.unit, is.first, is.last, says.first, says.last);
    }
  }

  void check_complete() {
    const bool training = done(ActionKind::norm, -1, -1);
    for (int32_t unit = 0; unit <= head_; ++unit) {
      const bool runs = schedule_.options.stages.runs(unit);
      for (int32_t m = 0; runs && m < schedule_.options.micro_batches; ++m) {
        require(done(ActionKind::forward, m, unit), "micro-batch {} does not reach unit {}", m, unit);
        require(!training || has_weight_gradients(m, unit), "micro-batch {} has no gradients of unit {}", m, unit);
      }
      require(!training || !schedule_.options.holds(unit) || done(ActionKind::update, -1, unit),
              "unit {} is never updated", unit);
    }
    require(std::find(sending_.begin(), sending_.end(), true) == sending_.end(), "what is sent is not awaited");
    require(std::find(content_.begin(), content_.end(), Content::under_way) == content_.end(),
            "what is gathered or received is not awaited");
  }

  const Schedule& schedule_;
  const int32_t head_;
  std::vector<Content> content_;               // by buffer
  std::vector<bool> sending_;                  // by buffer: between a send or copy and the action that awaits it
  std::vector<int32_t> last_weight_gradient_;  // by unit: last micro-batch that was added; -1: none
  std::vector<int8_t> phases_begun_;           // number of begun phases of each sum, by micro-batch and unit
  std::vector<bool> done_;                     // by kind, micro-batch and unit
  std::string fault_;
};

}  // namespace

std::string check(const Schedule& schedule) { return Checker(schedule).run(); }

}  // namespace gptrain::schedule
