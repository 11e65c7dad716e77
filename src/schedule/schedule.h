// Schedules as data: the list of actions that one stage runs in a step, and the buffers that each action reads and
// writes. The executor runs the list, the dry run simulates it, `check` proves it sound. A pipeline schedule
// (schedule/pipeline) gives the order of passes; every pass consists of the same actions under all of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_array.h"
#include "config/parallelism.h"
#include "model/spec/unit.h"
#include "schedule/operands.h"
#include "schedule/stages.h"
#include "schedule/unit_offload.h"

namespace gptrain::inline schedule {

enum class ActionKind : uint8_t {
  load,              // copies a micro-batch in
  forward,           // unit u: from its input to its output; the head: up to its norm
  loss,              // head: logits chunk by chunk (not kept), the loss, and both products of the logits' gradients
  evaluate,          // head: logits and loss only
  recompute_output,  // unit u: recomputes its output, the input of a later unit that is recomputed
  recompute,         // unit u: recomputes the values that its forward saves
  backward_input,    // unit u: gradient of its input, and the gradients that backward_weight reads
  backward_weight,   // unit u: gradients of its weights
  backward,          // unit u: both; products for the weights overlap the tensor ranks' sum of the input gradient
  gather,            // unit u: begins to gather its weights from the ranks that hold the other pieces
  await_weights,     // unit u: waits until the weights are gathered
  reduce,            // unit u: begins to sum its gradients over the ranks that hold the same weights
  reduce_on,         // unit u: waits for a phase of that sum and begins the next one (Action::phase)
  await_gradients,   // unit u: waits until the sum is there; with ZeRO 2 and 3 adds it to the rank's piece
  keep_gradients,    // unit u: adds a micro-batch's gradients to the rank's sum, which has a narrower dtype
  // Transfers between stages, in pairs: the first action begins a transfer, the second waits for its end.
  send_output,  // unit u: its output to the stage of unit u + 1
  await_output_sent,
  receive_input,  // unit u: the output of unit u - 1
  await_input,
  send_d_input,  // unit u: the gradient of its input to the stage of unit u - 1
  await_d_input_sent,
  receive_d_output,  // unit u: the gradient of its output
  await_d_output,
  // Copies of an offloaded unit's record (record_of): to the host, and back to other memory of the device.
  offload,  // begins the copy to the host
  await_offloaded,
  fetch,  // begins the copy back
  await_fetched,
  sum_tied,  // unit 0: sums its gradients over the first and the last stage, which both hold a tied table
  norm,      // global gradient norm; decides clipping and whether the step is skipped
  update,    // unit u: optimizer
  average,   // unit u: averages its weights over islands
};
constexpr int num_action_kinds = static_cast<int>(ActionKind::average) + 1;

std::string_view action_name(ActionKind kind);
// Whether the action repeats ops of a forward pass.
constexpr bool is_recomputation(ActionKind kind) {
  return kind == ActionKind::recompute_output || kind == ActionKind::recompute;
}

// Whether the action begins the offload or the fetch of a record, or waits for its end.
constexpr bool copies_record(ActionKind kind) {
  return kind >= ActionKind::offload && kind <= ActionKind::await_fetched;
}

// A transfer between stages: its operand, its direction, and whether the action begins it or waits for its end.
struct Transfer {
  Operand operand;
  bool sends;
  bool begins;
};
// Returns nothing for actions that are no transfers between stages.
std::optional<Transfer> transfer_of(ActionKind kind);
// Returns the message that a transfer moves. REQUIRES: transfer_of(kind) has a value.
StageMessage message_of(const Stages& stages, ActionKind kind, int32_t micro_batch, int32_t unit);

// Kinds of buffers. Memory that lasts for the whole run (the rank's own weights, gradients and optimizer state) is in
// none of them. A buffer belongs to a unit, and unless it is weights or prepared_weights to a micro-batch as well.
enum class BufferKind : uint8_t {
  batch,                // tokens, targets, sample numbers and starts of documents; belongs to no unit
  stream,               // the residual stream that leaves the unit
  saved_for_recompute,  // values that the unit's forward saves for its recompute and its backward_input
  saved_for_input,      // values that the unit saves for backward_input
  saved_for_weight,     // values that the unit saves for backward_weight
  gradients,            // gradients that backward_input leaves for backward_weight
  stream_gradient,      // the gradient of the stream that leaves the unit
  weights,              // whole weights, gathered from pieces (ZeRO 3)
  prepared_weights,     // weights quantized to FP8, read by products instead of the weights
  whole_gradients,   // f32 gradients of the whole unit; the rank adds them, or with ZeRO 2 and 3 its piece, to its own
  narrow_gradients,  // gradients in the narrower dtype in which they are summed, or messages with their codes
  offloaded,         // the unit's record, on the host
  count
};
constexpr size_t num_buffer_kinds = static_cast<size_t>(BufferKind::count);

std::string_view buffer_name(BufferKind kind);

// One value in memory, alive from the first to the last action that names it, both included. A value that is computed
// again, as in recomputation, is another buffer.
struct Buffer {
  BufferKind kind;
  int32_t micro_batch = -1;  // -1: all
  int32_t unit = -1;         // -1: none
  int32_t first = -1;        // index of the first action that names it; -1: no action does
  int32_t last = -1;
};

struct Action {
  ActionKind kind;
  int8_t phase = 0;  // number of the phase that reduce_on begins, from 1 on
  int32_t micro_batch = -1;
  int32_t unit = -1;
  EnumArray<Operand, int32_t, num_operands> buffers = none();  // by operand: index in Schedule::buffers; -1: not used

  int32_t operator[](Operand operand) const { return buffers[operand]; }
  int32_t& operator[](Operand operand) { return buffers[operand]; }

 private:
  static constexpr EnumArray<Operand, int32_t, num_operands> none() {
    EnumArray<Operand, int32_t, num_operands> buffers{};
    buffers.fill(-1);
    return buffers;
  }
};

// How an action uses an operand.
enum class Access : uint8_t { none, read, write, read_write };

// Facts about a unit that the schedule depends on.
struct UnitTraits {
  UnitKind kind = UnitKind::block;
  bool recomputed = false;
  // First of the units that are recomputed before this unit. Their outputs and saved values go to new buffers, which
  // later passes read until the unit is recomputed once more. -1: recomputation begins at this unit's own input.
  int32_t recompute_from = -1;
  bool prepares_weights = false;  // has a buffer prepared_weights
  int8_t sum_phases = 1;          // phases of a sum of its gradients, 1 to 3, with ops between them
  UnitOffload offload{};
  UnitUses uses{};

  bool operator==(const UnitTraits&) const = default;
};

// Returns the operands that are copied to the host if the unit is offloaded: its input alone, or its record. The record
// has the inputs and results of its forward pass that its recompute or backward pass reads and its recompute does not
// write.
OperandSet record_of(const UnitTraits& unit);
inline constexpr std::array<Operand, 4> record_operands = {Operand::input, Operand::saved_for_recompute,
                                                           Operand::saved_for_input,
                                                           Operand::saved_for_weight};  // all that a record may have

// Input of training_schedule and its siblings.
struct ScheduleOptions {
  int32_t micro_batches = 1;
  std::vector<UnitTraits> units = {};  // all units of the model, not only this stage's
  // The stage of each unit. Its number of micro-batches is overwritten with `micro_batches`. Without first_units, one
  // stage runs all units.
  Stages stages = {};
  ParameterFlow flow = {};
  bool narrow_sums = false;  // sums of gradients have a buffer: gradients in a narrower dtype, or messages
  bool tied_head = false;
  bool joint_backward = false;  // `backward` replaces its two halves, unless the pipeline schedule splits them
  bool keeps_narrow = false;    // gradients are away, or in a narrower dtype than they are computed in
  int32_t gathers_ahead = 1;    // blocks whose weights are gathered before they are needed, at least 1
  int32_t sums_under_way = 2;   // sums of blocks' gradients that may be under way at a time, at least 1
  bool sums_alone = false;      // sums involve this rank only, so each is awaited as soon as it begins
  bool averages = false;        // weights are averaged over islands after their update

  // Whether a micro-batch's gradients are written to a buffer of their own and then added to the accumulated sum.
  bool has_gradient_buckets() const { return flow.sums_each_pass || keeps_narrow; }
  // Whether this stage holds the unit's parameters. The last stage holds unit 0's as well if the head is tied.
  bool holds(int32_t unit) const { return stages.runs(unit) || (unit == 0 && tied_head && stages.last()); }
  // Whether two stages, the first and the last, hold the table of a tied head.
  bool table_twice() const { return tied_head && stages.shape.stages > 1 && stages.first() != stages.last(); }
  bool operator==(const ScheduleOptions&) const = default;
};

struct Schedule {
  ScheduleOptions options;
  std::vector<Action> actions;
  std::vector<Buffer> buffers;

  int32_t num_layers() const { return static_cast<int32_t>(options.units.size()); }  // units that passes run
  const UnitTraits& traits(int32_t unit) const { return options.units[unit]; }
};

// Returns how an action of this kind and unit (-1: no unit) uses an operand. An action names a buffer for exactly the
// operands for which this is not Access::none. Operands that a schedule has no buffers for (gathered weights if
// they are resident) are Access::none.
Access access(const Schedule& schedule, ActionKind kind, int32_t unit, Operand operand);

// Sets every buffer's first and last action from the actions' operands.
void set_lifetimes(Schedule& schedule);

// Returns one stage's training step. Passes follow the pipeline schedule's order; unless it splits backward passes, a
// unit's weight gradients follow its input gradient directly. The sum of a unit's gradients begins once they are
// complete. Norm and updates come last. A receive begins one message before it is needed, and at most two sends are
// under way in each direction.
Schedule training_schedule(const ScheduleOptions& options);

// Returns forward and loss of one micro-batch; no buffer is saved for a backward pass.
Schedule evaluation_schedule(const ScheduleOptions& options);

// Returns the forward of one micro-batch up to the head's norm, from which the caller computes logits. The buffers of
// its last action are alive at the end.
Schedule inference_schedule(const ScheduleOptions& options);

// Returns "" if every action finds its inputs and every buffer holds the value that its readers expect, else a text
// about the first violation.
std::string check(const Schedule& schedule);

}  // namespace gptrain::schedule
