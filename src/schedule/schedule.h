// Pipeline schedules as data: what one stage does in a step, action by action. The executor plays the list, the dry run
// simulates it, `check` proves it sound. A new schedule is a new generator and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain {

// Micro-batch m, unit u (embedding 0, blocks, head last).
enum class ActionKind : uint8_t {
  forward,    // unit u from its input to the next unit's input; the head: up to its norm
  loss,       // head: logits chunk by chunk, the loss, and both products of their gradients (logits are never stored)
  evaluate,   // head: logits and loss only
  recompute,  // forward of unit u again, into a replay slot
  backward_input,   // unit u: gradient of its input
  backward_weight,  // unit u: gradients of all its weights; of the head: but its matrix, which the loss has
  backward,         // unit u: both at once, the weights' products hiding the sums of the input's gradient
  gather,           // unit u: begins to gather its weights from the data-parallel ranks
  await_weights,    // unit u: waits until they are there
  reduce,           // unit u: begins to sum its gradients over the ranks that hold the same weights
  await_gradients,  // unit u: waits until the sum is there; with ZeRO 2 and 3 adds it to the rank's shard
  norm,             // global gradient norm; decides clipping and skipping
  update,           // unit u: optimizer
};
constexpr int num_action_kinds = static_cast<int>(ActionKind::update) + 1;

std::string_view action_name(ActionKind kind);

// Slots index pools of equal records (see Schedule); -1 where the action uses none.
struct Action {
  ActionKind kind;
  int32_t micro_batch = -1;
  int32_t unit = -1;
  int32_t activation = -1;  // of the micro-batch, from its first forward to its last backward
  int32_t replay = -1;      // saved record of a recomputed unit
  int32_t gradient = -1;    // what backward_input (or loss) leaves for backward_weight
  int32_t d_output = -1;    // gradient of the unit's output, read
  int32_t d_input = -1;     // gradient of the unit's input, written: the d_output of the unit before
};

// What the order of actions depends on.
struct ScheduleOptions {
  int32_t micro_batches = 1;
  std::vector<bool> recomputed;  // by unit: embedding, blocks, head
  // ZeRO stage (arXiv 1910.02054), 0 where the data axis has one rank. 0, 1: gradients are summed after the last
  // micro-batch; 1, 2: updated weights are gathered for the next step; 2, 3: gradients are summed after every
  // micro-batch, from a few slots that hold one unit's whole gradients each; 3: weights are gathered before use, into
  // slots of the same kind.
  int32_t zero = 0;
  bool narrowed_sums = false;  // gradients are summed from slots of their own, in the reduce dtype
  bool tied_head = false;
  bool joint_backward = false;  // `backward` in place of its two halves
};

// Which slot for whole gradients (ZeRO 2, 3; narrowed sums) and whole weights (ZeRO 3) a unit uses: embedding and head
// have one each, the blocks take turns on two, so that one is in use while the other is on its way.
enum class ParameterSlot : uint8_t { embedding, head, even_block, odd_block, count };
constexpr size_t num_parameter_slots = static_cast<size_t>(ParameterSlot::count);
ParameterSlot parameter_slot(int64_t unit, int64_t num_units);

struct Schedule {
  int32_t num_units = 0;
  int32_t zero = 0;
  bool narrowed_sums = false;
  bool tied_head = false;
  int32_t micro_batches = 0;
  std::vector<bool> recomputed;  // by unit

  bool sums_use_slots() const { return zero >= 2 || narrowed_sums; }

  std::vector<Action> actions;
  // Pool sizes: the most records of a kind that live at the same time.
  int32_t activation_slots = 0;
  int32_t replay_slots = 0;
  int32_t gradient_slots = 0;
  int32_t carrier_slots = 0;  // of d_output and d_input
};

// Training on one stage: for each micro-batch all forwards, the loss, all backwards, each unit's weight gradients right
// after its input gradient; a unit's sum begins as soon as its backward is done; then norm and updates.
Schedule one_stage_schedule(const ScheduleOptions& options);

// Forward and loss of one micro-batch, nothing kept for a backward pass.
Schedule evaluation_schedule(const ScheduleOptions& options);

// Empty if every action's inputs are there when it runs and no slot is written while its content is still needed; else
// the first violation in words.
std::string check(const Schedule& schedule);

}  // namespace gptrain
