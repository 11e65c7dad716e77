// Schedules as data: what one stage does in a step, action by action, and the buffers that each action reads and writes.
// The executor plays the list, the dry run simulates it, `check` proves it sound. The order of passes is a pipeline
// schedule's (schedule/pipeline); what a pass is made of is the same for all.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/spec/spec.h"
#include "schedule/operands.h"
#include "schedule/stages.h"
#include "schedule/unit_offload.h"

namespace gptrain {

enum class ActionKind : uint8_t {
  load,             // brings a micro-batch in
  forward,          // unit u from its input to its output; the head: up to its norm
  loss,             // head: logits chunk by chunk, the loss, and both products of their gradients (logits are not kept)
  evaluate,         // head: logits and loss only
  forward_again,    // forward of unit u again, with its output: on the way to a unit behind it that is run again
  recompute,        // forward of unit u again, for what it saves
  backward_input,   // unit u: gradient of its input, and what its weights' gradients need of it
  backward_weight,  // unit u: gradients of its weights
  backward,         // unit u: both at once, the weights' products hiding the sums of the input's gradient
  gather,           // unit u: begins to gather its weights from the ranks that hold the other pieces
  await_weights,    // unit u: waits until they are there
  reduce,           // unit u: begins to sum its gradients over the ranks that hold the same weights
  await_gradients,  // unit u: waits until the sum is there; with ZeRO 2 and 3 adds it to the rank's piece
  keep_gradients,   // unit u: adds a micro-batch's gradients to the rank's, which are kept in a narrower dtype
  // Transfers between stages: the first of two begins one, the second waits until it is over.
  send_output,         // unit u: its output to the stage of unit u + 1
  await_output_sent,
  receive_input,       // unit u: the output of unit u - 1
  await_input,
  send_d_input,        // unit u: the gradient of its input to the stage of unit u - 1
  await_d_input_sent,
  receive_d_output,    // unit u: the gradient of its output
  await_d_output,
  // Copies of an offloaded unit's record (record_of), to the host and back to other memory of the device.
  offload, await_offloaded, fetch, await_fetched,
  sum_tied,            // unit 0: its gradients over the first and the last stage, which both hold a tied head's table
  norm,             // global gradient norm; decides clipping and skipping
  update,           // unit u: optimizer
};
constexpr int num_action_kinds = static_cast<int>(ActionKind::update) + 1;

std::string_view action_name(ActionKind kind);
// Whether its ops are no part of the model's, but run once more.
constexpr bool is_again(ActionKind kind) { return kind == ActionKind::forward_again || kind == ActionKind::recompute; }

// Whether the action copies a record: the first of two begins that, the second waits until it is over.
constexpr bool copies_record(ActionKind kind) {
  return kind >= ActionKind::offload && kind <= ActionKind::await_fetched;
}

// The direction of a transfer, its operand, and whether the action begins it.
struct Transfer {
  Operand operand;
  bool sends;
  bool begins;
};
// None for actions that are no transfers.
std::optional<Transfer> transfer_of(ActionKind kind);
// The message that the transfer of such an action moves.
StageMessage message_of(const Stages& stages, ActionKind kind, int32_t micro_batch, int32_t unit);

// What an action works on besides memory that lasts for the whole run (the rank's own weights, gradients and optimizer
// state). A buffer belongs to a unit, and all kinds but weights and prepared_weights to a micro-batch of it.
enum class BufferKind : uint8_t {
  batch,             // tokens, targets, sample numbers and documents; of no unit
  stream,            // the residual stream that leaves the unit
  kept,              // what the unit's forward keeps for its recompute, and for the gradient of its input
  saved_for_input,   // what the unit saves for the gradient of its input
  saved_for_weight,  // what it saves for the gradients of its weights
  gradients,         // what the gradient of its input leaves for those of its weights
  stream_gradient,   // the gradient of the stream that leaves the unit
  weights,           // whole weights, gathered from pieces (ZeRO 3)
  prepared_weights,  // copies of weights that products read in their place (FP8)
  whole_gradients,   // gradients of the whole unit, of which the rank keeps a piece (ZeRO 2 and 3), or a narrower copy
  narrow_gradients,  // gradients in the narrower dtype that they travel in
  offloaded,         // on the host: what the unit's forward pass leaves for its backward pass
  count
};
constexpr size_t num_buffer_kinds = static_cast<size_t>(BufferKind::count);

std::string_view buffer_name(BufferKind kind);

// One content of one place: alive from the action that first names it to the last one, both included. A place that is
// filled anew, as what a recomputed unit saves is, is another buffer.
struct Buffer {
  BufferKind kind;
  int32_t micro_batch = -1;
  int32_t unit = -1;
  int32_t first = -1;  // indices of actions
  int32_t last = -1;
};

struct Action {
  ActionKind kind;
  int32_t micro_batch = -1;
  int32_t unit = -1;
  std::array<int32_t, num_operands> buffers = none();  // index of the operand's buffer; -1: the action has no such

  int32_t operator[](Operand operand) const { return buffers[static_cast<size_t>(operand)]; }
  int32_t& operator[](Operand operand) { return buffers[static_cast<size_t>(operand)]; }

 private:
  static constexpr std::array<int32_t, num_operands> none() {
    std::array<int32_t, num_operands> buffers{};
    buffers.fill(-1);
    return buffers;
  }
};

// How an action uses an operand.
enum class Access : uint8_t { none, read, write, read_write };

// What a schedule has to know of a unit.
struct UnitTraits {
  UnitKind kind = UnitKind::block;
  bool recomputed = false;
  // Where that begins: at the input of this unit, from which all up to the unit before are run again, right before what
  // the unit itself saves is made again. -1: at the unit's own input. What is run again leaves new buffers, which hold
  // until they are made once more.
  int32_t again_from = -1;
  bool prepares_weights = false;  // has prepared_weights
  UnitOffload offload{};          // of what its forward pass leaves
  UnitUses uses{};                // of what its own passes read and write

  bool operator==(const UnitTraits&) const = default;
};

// What a unit's forward pass finds or leaves on the device that its backward pass reads, and that is copied where the
// unit is offloaded: its record, or its input alone.
OperandSet record_of(const UnitTraits& unit);
inline constexpr std::array<Operand, 4> record_operands = {Operand::input, Operand::kept, Operand::saved_for_input,
                                                           Operand::saved_for_weight};  // that it may have

// What the order of actions depends on.
struct ScheduleOptions {
  int32_t micro_batches = 1;
  std::vector<UnitTraits> units = {};  // of the whole model
  // Where the units run; its number of micro-batches is set from the one above. Without units: all on one stage.
  Stages stages = {};
  // ZeRO stage (arXiv 1910.02054), 0 where the data axis has one rank. 0, 1: gradients are summed after the last
  // micro-batch; 1, 2: updated weights are gathered for the next step; 2, 3: gradients are summed after every
  // micro-batch; 3: weights are gathered before use.
  int32_t zero = 0;
  bool narrow_sums = false;  // gradients are summed in a narrower dtype than they are kept in
  bool tied_head = false;
  bool joint_backward = false;  // `backward` in place of its two halves, where the pipeline's schedule has them together
  bool keeps_narrow = false;  // gradients are kept in a narrower dtype than they are made in
  bool sums_alone = false;    // no other rank has gradients for a sum: it is awaited where it begins

  // Whether a micro-batch's gradients are made beside those that are kept.
  bool makes_gradients_apart() const { return zero >= 2 || keeps_narrow; }
  // Whether this stage holds the unit's parameters: it runs the unit, or is the last one, whose loss reads the table of
  // a tied head.
  bool holds(int32_t unit) const {
    return stages.runs(unit) || (unit == 0 && tied_head && stages.last());
  }
  // Whether the first and the last stage both hold the table.
  bool table_twice() const { return tied_head && stages.shape.stages > 1 && stages.first() != stages.last(); }
  bool operator==(const ScheduleOptions&) const = default;
};

struct Schedule {
  ScheduleOptions options;
  std::vector<Action> actions;
  std::vector<Buffer> buffers;

  int32_t num_units() const { return static_cast<int32_t>(options.units.size()); }
  const UnitTraits& traits(int32_t unit) const { return options.units[static_cast<size_t>(unit)]; }
};

// What an action of that kind and unit (-1: of none) does with an operand: it names a buffer for each that it accesses
// in some way, and for no other. What a schedule has no use for, as gathered weights without ZeRO 3, none accesses.
Access access(const Schedule& schedule, ActionKind kind, int32_t unit, Operand operand);

// Sets every buffer's first and last action from the actions' operands.
void set_lifetimes(Schedule& schedule);

// A stage's training step: its passes as the pipeline's schedule orders them, each unit's weight gradients right after
// its input gradient where the schedule does not have them apart; a unit's sum begins as soon as its last gradient is
// there; then norm and updates. Receives begin one message ahead of what is needed, sends end when a third is to begin.
Schedule training_schedule(const ScheduleOptions& options);

// Forward and loss of one micro-batch, nothing kept for a backward pass.
Schedule evaluation_schedule(const ScheduleOptions& options);

// Forward of one micro-batch up to the head's norm, from which logits are made. What that names is there at the end.
Schedule inference_schedule(const ScheduleOptions& options);

// Empty if every action's inputs are there when it runs and every buffer holds what its readers expect; else the first
// violation in words.
std::string check(const Schedule& schedule);

}  // namespace gptrain
