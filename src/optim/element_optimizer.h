// Optimizers that update each element independently (see ops/element_update.h): their table of segments, and one op per
// unit.
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

namespace gptrain::inline optim {

// Extent of the sums of an update that reads sums of whole tensors (ops/tensor_norms.h): the model's tensors, or
// separately each matrix and vector in them (queries, keys, values, gate, up).
enum class SummedParts : uint8_t { tensors, parts };

class PartNumbers {
 public:
  PartNumbers(const ModelSpec& spec, SummedParts summed);

  // RETURN the number of a tensor's first part, and the number of all parts. Parts are numbered consecutively, tensor
  // after tensor.
  int64_t first(int64_t tensor) const { return first_[tensor]; }
  int64_t all() const { return first_.back(); }

  struct NumberedBox {
    ShardBox box;
    int64_t part;
  };
  // RETURNS a box of a rank's shard of tensor number `index`, cut at the borders of parts.
  std::vector<NumberedBox> cut(const TensorSpec& tensor, int64_t index, const ShardBox& box) const;

 private:
  SummedParts summed_;
  std::vector<int64_t> first_;  // first part of each tensor, then the number of all parts
};

// RETURNS an op of Adam's kind with the config's constants.
template <typename Op>
Op adam_op(const OptimizerConfig& config) {
  Op op;
  op.beta1 = config.beta1;
  op.beta2 = config.beta2;
  op.eps = config.eps;
  op.weight_decay = config.weight_decay;
  return op;
}

// RETURNS operands, without segments, for elements [first, first + elements) of this rank's part of the unit. Columns
// that have values only for the tensors of UnitEnd (is_of_last) and factored ones are left out.
ElementUpdate unit_operands(const UpdateContext& context, int64_t unit, int64_t first, int64_t elements);

// The table of all units' segments in device memory, from which it makes the operands of each unit's update.
class ElementUpdates {
 public:
  // Uploads the table to `tables`, device memory of element_table_bytes, or of part_table_bytes with
  // SummedParts::parts. The spec gives each tensor's weight decay and learning-rate factor. Borrows the context's
  // references. last_is_separate: the caller updates the tensors of UnitEnd separately, by update_before_last and
  // update_last.
  ElementUpdates(const UpdateContext& context, uint64_t seed, std::byte* tables, bool last_is_separate = false,
                 SummedParts summed = SummedParts::tensors);

  // Calls run(operands) for this rank's part of the unit: once, or if only norms have master weights (Sharding::pure)
  // twice, for the norms and for the rest. Makes no call if the rank has no part of the unit.
  void update(int64_t unit, const std::function<void(const ElementUpdate&)>& run) const;
  // Do the same for all tensors before those of UnitEnd, and for the latter, whose operands lack columns without values
  // for them. REQUIRES last_is_separate.
  void update_before_last(int64_t unit, const std::function<void(const ElementUpdate&)>& run) const;
  void update_last(int64_t unit, const std::function<void(const ElementUpdate&)>& run) const;

 private:
  // RETURNS operands for elements [first, first + elements) of the unit's range, with segments [first_segment,
  // end_segment).
  ElementUpdate operands(int64_t unit, int64_t first, int64_t elements, int64_t first_segment,
                         int64_t end_segment) const;

  // Updates the unit's first `elements`, which hold its segments before end_segment.
  void update_first(int64_t unit, int64_t elements, int64_t end_segment,
                    const std::function<void(const ElementUpdate&)>& run) const;

  UpdateContext context_;
  // Device memory; unit after unit, in each the norms, other tensors, tensors of UnitEnd.
  const UpdateSegment* segments_;
  std::vector<int64_t> first_segment_;  // for each unit first segment of norms, others, UnitEnd; then the end
};

int64_t element_table_bytes(const ParameterStore& parameters);
// RETURNS the same for SummedParts::parts.
int64_t part_table_bytes(const ParameterStore& parameters);

template <typename Op>
class ElementOptimizer final : public Optimizer {
 public:
  // `op` holds the constants of the update; each call sets its operands.
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

// RETURNS the optimizer. `op_of(config)` is the op with the config's constants.
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

// RETURNS the type. `columns`: the op's columns, in its order.
template <auto op_of>
OptimizerType element_optimizer_type(OptimizerKind kind, StateColumns columns) {
  return {kind, std::move(columns), element_table_bytes, make_element_optimizer<op_of>};
}

}  // namespace gptrain::optim
