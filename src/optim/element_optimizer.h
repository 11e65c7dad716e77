// Optimizers that update each element by itself (see ops/element_update.h): their table of segments, and one op for
// each unit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/updates.h"
#include "optim/optimizer.h"

namespace gptrain {

// What an update takes for one tensor where it reads sums of whole tensors (ops/tensor_norms.h): the tensors of the
// model, or each of the matrices and vectors in them, as queries, keys, values, gate and up are.
enum class SummedParts : uint8_t { tensors, parts };

class PartNumbers {
 public:
  PartNumbers(const ModelSpec& spec, SummedParts summed);

  // The parts of a tensor have numbers that follow one another, and so do tensors.
  int64_t first(int64_t tensor) const { return first_[static_cast<size_t>(tensor)]; }
  int64_t all() const { return first_.back(); }

  struct NumberedBox {
    ShardBox box;
    int64_t part;
  };
  // A box of a rank's shard of the tensor, cut between parts.
  std::vector<NumberedBox> cut(const TensorSpec& tensor, int64_t index, const ShardBox& box) const;

 private:
  SummedParts summed_;
  std::vector<int64_t> first_;  // by tensor, and the end
};

// Elements [first, first + elements) of what this rank updates of the unit, without segments. Columns are those with
// values for elements that are not only of what comes last (is_of_last), one after the other.
ElementUpdate unit_operands(const UpdateContext& context, int64_t unit, int64_t first, int64_t elements);

// The segments of all units in device memory, and each unit's update as ranges of elements.
class ElementUpdates {
 public:
  // Uploads the table to `tables`, which is device memory of element_table_bytes. The spec gives each tensor's weight
  // decay and learning-rate factor. The context's references are borrowed. With last_apart, what
  // comes last in units (UnitEnd) is updated by calls of its own.
  ElementUpdates(const UpdateContext& context, uint64_t seed, std::byte* tables, bool last_apart = false,
                 SummedParts summed = SummedParts::tensors);

  // Calls run(operands) for this rank's part of the unit: once, or twice where only norms have master weights
  // (Sharding::pure), for the norms and for the rest. A rank without a part of the unit makes no call.
  void update(int64_t unit, const std::function<void(const ElementUpdate&)>& run) const;
  // The same with what comes last apart: all before it, and that, without columns that have no values for it.
  void update_before_last(int64_t unit, const std::function<void(const ElementUpdate&)>& run) const;
  void update_last(int64_t unit, const std::function<void(const ElementUpdate&)>& run) const;

 private:
  // Elements [first, first + elements) of the unit's range, with segments [first_segment, end_segment).
  ElementUpdate operands(int64_t unit, int64_t first, int64_t elements, int64_t first_segment,
                         int64_t end_segment) const;

  // Of the unit's first `elements`, where segments [.., end_segment) lie.
  void update_first(int64_t unit, int64_t elements, int64_t end_segment,
                    const std::function<void(const ElementUpdate&)>& run) const;

  UpdateContext context_;
  const UpdateSegment* segments_;       // device memory; unit after unit, norms first and what comes last at the end
  std::vector<int64_t> first_segment_;  // of a unit's norms, of others, of what comes last; by unit, and the end
};

int64_t element_table_bytes(const ParameterStore& parameters);
// With SummedParts::parts.
int64_t part_table_bytes(const ParameterStore& parameters);

template <typename Op>
class ElementOptimizer final : public Optimizer {
 public:
  // `op` holds the constants of the update. Its operands are set for each call.
  ElementOptimizer(const Op& op, const UpdateContext& context, uint64_t seed, std::byte* tables)
      : op_(op), backend_(context.backend), updates_(context, seed, tables) {}

  void update(int64_t unit) override {
    updates_.update(unit, [this](const ElementUpdate& operands) {
      Op op = op_;
      static_cast<ElementUpdate&>(op) = operands;
      backend_.run(op);
    });
  }

 private:
  Op op_;
  Backend& backend_;
  ElementUpdates updates_;
};

// `op_of(config)` is the op with the config's constants.
template <auto op_of>
std::unique_ptr<Optimizer> make_element_optimizer(const OptimizerConfig& config, const UpdateContext& context,
                                                  uint64_t seed, std::byte* tables) {
  const auto op = op_of(config);
  using Op = std::remove_const_t<decltype(op)>;
  if (config.ema == 0) return std::make_unique<ElementOptimizer<Op>>(op, context, seed, tables);
  Averaged<Op> averaged{op};
  averaged.ema = config.ema;
  return std::make_unique<ElementOptimizer<Averaged<Op>>>(averaged, context, seed, tables);
}

// `columns` are those of the op, in its order.
template <auto op_of>
OptimizerType element_optimizer_type(OptimizerKind kind, StateColumns columns) {
  return {kind, std::move(columns), element_table_bytes, make_element_optimizer<op_of>};
}

}  // namespace gptrain
