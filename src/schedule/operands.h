// What actions work on, by name, and what a unit's own passes read and write of it: the model says so of each of its
// layers, and lifetimes of buffers are made from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace gptrain {

// What a buffer is to an action.
enum class Operand : uint8_t {
  batch,   // tokens, targets, sample numbers and starts of documents
  input,   // the stream of the unit before
  output,  // the unit's stream
  kept,
  saved_for_input,
  saved_for_weight,
  gradients,
  d_output,  // gradient of `output`
  d_input,   // gradient of `input`
  weights,   // these two, to the loss: of the unit that holds the head's matrix, with a tied head the embedding
  whole_gradients,
  prepared_weights,
  narrow_gradients,
  host,  // the copy of what an offloaded unit saves
  count
};
constexpr size_t num_operands = static_cast<size_t>(Operand::count);

std::string_view operand_name(Operand operand);

class OperandSet {
 public:
  constexpr OperandSet() = default;
  constexpr OperandSet(std::initializer_list<Operand> operands) {
    for (const Operand operand : operands) add(operand);
  }
  constexpr void add(Operand operand) {
    bits_ = static_cast<uint16_t>(bits_ | 1U << static_cast<unsigned>(operand));
  }
  constexpr bool contains(Operand operand) const { return (bits_ >> static_cast<unsigned>(operand) & 1U) != 0; }
  bool operator==(const OperandSet&) const = default;

 private:
  uint16_t bits_ = 0;
};

// What a pass needs to find, and what it leaves. What it writes it writes whole before it reads it, but where it is also
// named as read.
struct OperandUse {
  OperandSet reads, writes;

  bool operator==(const OperandUse&) const = default;
};

// The passes of a unit. A whole backward pass is backward_input and backward_weight at once.
enum class UnitPass : uint8_t { forward, recompute, loss, evaluate, backward_input, backward_weight };
constexpr size_t num_unit_passes = static_cast<size_t>(UnitPass::backward_weight) + 1;

// Of operands up to d_input; parameters are the schedule's affair.
using UnitUses = std::array<OperandUse, num_unit_passes>;

}  // namespace gptrain
