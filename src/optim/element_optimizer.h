// Optimizers that work element by element (see ops/element_update.h): the table of segments, and one op for each unit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "ops/element_update.h"
#include "optim/optimizer.h"

namespace gptrain {

// The segments of all units in device memory, and each unit's update as ranges of elements.
class ElementUpdates {
 public:
  // Uploads the table to `tables` (device, element_table_bytes of them). Decay and the learning rate's factor are the
  // tensors', as the spec says. Borrows what the context names.
  ElementUpdates(const UpdateContext& context, uint64_t seed, std::byte* tables);

  // Calls run(operands) for this rank's part of the unit: once, or, where only norms have masters (Sharding::pure), once
  // for the norms and once for the rest. A rank without a part of the unit makes no call.
  void update(int64_t unit, const std::function<void(const ElementUpdate&)>& run) const;

 private:
  // Elements [first, first + elements) of the unit's range, with segments [first_segment, end_segment).
  ElementUpdate operands(int64_t unit, int64_t first, int64_t elements, int64_t first_segment,
                         int64_t end_segment) const;

  UpdateContext context_;
  const UpdateSegment* segments_;       // device memory; unit after unit, norms first
  std::vector<int64_t> first_segment_;  // of a unit's norms, of its other tensors; by unit, and the end
};

int64_t element_table_bytes(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                            const ParameterStore& parameters);

template <typename Op>
class ElementOptimizer final : public Optimizer {
 public:
  // `op` has what does not depend on the operands.
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

}  // namespace gptrain
