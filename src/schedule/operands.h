// Operands of actions by name, and the operands that each pass of a unit reads and writes. The model declares these for
// its layers; the schedule derives the lifetimes of buffers from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "base/enum_array.h"

namespace gptrain::inline schedule {

// Role of a buffer in an action. Roles without a comment are explained in BufferKind.
enum class Operand : uint8_t {
  batch,   // tokens, targets, sample numbers and starts of documents
  input,   // the residual stream that enters the unit
  output,  // the residual stream that leaves the unit
  saved_for_recompute,
  saved_for_input,
  saved_for_weight,
  gradients,
  d_output,  // gradient of `output`
  d_input,   // gradient of `input`
  weights,  // in the loss, weights and whole_gradients belong to the unit that holds the head's matrix: if tied, unit 0
  whole_gradients,
  prepared_weights,
  narrow_gradients,
  host,  // an offloaded unit's record, on the host
  count
};
constexpr size_t num_operands = static_cast<size_t>(Operand::count);
using OperandBits = uint32_t;
static_assert(num_operands <= 8 * sizeof(OperandBits));

std::string_view operand_name(Operand operand);

class OperandSet {
 public:
  constexpr OperandSet() = default;
  constexpr OperandSet(std::initializer_list<Operand> operands) {
    for (const Operand operand : operands) add(operand);
  }
  constexpr void add(Operand operand) { bits_ |= OperandBits{1} << static_cast<unsigned>(operand); }
  constexpr bool contains(Operand operand) const { return (bits_ >> static_cast<unsigned>(operand) & 1U) != 0; }
  bool operator==(const OperandSet&) const = default;

 private:
  OperandBits bits_ = 0;
};

// Operands that a pass reads and writes. An operand only in `writes` is fully overwritten before the pass reads it.
struct OperandUse {
  OperandSet reads, writes;

  bool operator==(const OperandUse&) const = default;
};

// The passes of a unit. A whole backward pass is backward_input and backward_weight at once.
enum class UnitPass : uint8_t { forward, recompute, loss, evaluate, backward_input, backward_weight };
constexpr size_t num_unit_passes = static_cast<size_t>(UnitPass::backward_weight) + 1;

// Operands by pass, up to Operand::d_input. The schedule itself adds parameters and their gradients.
using UnitUses = EnumArray<UnitPass, OperandUse, num_unit_passes>;

}  // namespace gptrain::schedule
