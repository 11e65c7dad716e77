// Optimizers that scale the step of each tensor by norms of the whole tensor (see ops/tensor_norms.h), summed in a pass
// before the updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "optim/element_optimizer.h"

namespace gptrain::inline optim {

// The table of sums by tensor, and the pass that computes this rank's share. Exactly one rank adds each element, the
// one that adds it to the norm of the gradients (StepAgreement::agree): layouts with equal bits of that norm have equal
// bits of the sums. With
// SummedParts::tensors the table has a row for each tensor, zero for those without weight decay, which are not summed;
// with SummedParts::parts a row for each part of every tensor.
class TensorSums {
 public:
  // Uploads its segments to `tables`, device memory of table_bytes for segments and sums. Borrows all that it is given.
  TensorSums(const UpdateContext& context, std::byte* tables, SummedParts summed = SummedParts::tensors);

  static int64_t table_bytes(const ParameterStore& parameters, SummedParts summed = SummedParts::tensors);

  const Matrix& sums() const { return sums_; }  // [rows, 2] f64, in device memory

  // Calls run(operands, first_tensor, sums), the operands of TensorNorms, first without elements for all rows, which
  // zeroes the table, then for each range of this rank's elements. Itself reads state that is away. Not collective.
  void measure(const std::function<void(const ElementUpdate&, int64_t, const Matrix&)>& run) const;

 private:
  // Operands of one op: elements [first, end) of a unit, and the rows of the table that it writes.
  struct Part {
    int64_t unit;
    int64_t first, end;
    int64_t first_segment, num_segments;
    int64_t first_row, num_rows;
    bool masters_of_norms_only;  // elements are weights of norm layers, which alone have masters (Sharding::pure)
  };
  struct Measured {
    std::vector<UpdateSegment> segments;
    std::vector<Part> parts;
    int64_t num_rows = 0;

    int64_t segment_bytes() const;
    Matrix sums(std::byte* data) const { return {data, DType::f64, num_rows, 2}; }
  };
  static Measured measured(const ParameterStore& parameters, SummedParts summed);

  UpdateContext context_;
  const UpdateSegment* segments_;  // device memory
  std::vector<Part> parts_;
  Matrix sums_;
};

// RETURNS the sum of element_table_bytes and TensorSums::table_bytes.
int64_t tensor_table_bytes(const ParameterStore& parameters);

// `Op` is `Update` or Averaged<Update>.
template <typename Update, typename Op>
class TensorOptimizer final : public Optimizer {
 public:
  TensorOptimizer(const Op& op, const UpdateContext& context, uint64_t seed, std::byte* tables)
      : update_(op),
        in_gpu_order_(context.on_host_of_gpu),
        backend_(context.backend),
        sums_(context, tables + element_table_bytes(context.parameters)),
        second_pass_(with_sums(op, sums_.sums()), context, seed, tables) {}

  Matrix measure() override {
    sums_.measure([this](const ElementUpdate& operands, int64_t first_tensor, const Matrix& sums) {
      TensorNorms<Update> op{
          .update = update_, .first_tensor = first_tensor, .sums = sums, .in_gpu_order = in_gpu_order_};
      static_cast<ElementUpdate&>(op.update) = operands;
      // Weights beside masters are not read, and the CPU's op has no fp16.
      if (in_gpu_order_ && op.update.master.given()) op.update.weights = {};
      backend_.run(op);
    });
    return sums_.sums();
  }

  void update(int64_t unit) override { second_pass_.update(unit); }

 private:
  static Op with_sums(Op op, const Matrix& sums) {
    op.sums = sums;
    return op;
  }

  Update update_;
  bool in_gpu_order_;
  Backend& backend_;
  TensorSums sums_;
  ElementOptimizer<Op> second_pass_;
};

// RETURNS the optimizer. `op_of(config)` is the op with the config's constants.
template <auto op_of>
std::unique_ptr<Optimizer> make_tensor_optimizer(const OptimizerConfig& config, const UpdateContext& context,
                                                 uint64_t seed, std::byte* tables) {
  const auto op = op_of(config);
  using Op = std::remove_const_t<decltype(op)>;
  if (config.ema == 0) return std::make_unique<TensorOptimizer<Op, Op>>(op, context, seed, tables);
  Averaged<Op> averaged{op};
  averaged.ema = config.ema;
  return std::make_unique<TensorOptimizer<Op, Averaged<Op>>>(averaged, context, seed, tables);
}

// RETURNS the type. `columns`: the op's columns, in its order.
template <auto op_of>
OptimizerType tensor_optimizer_type(OptimizerKind kind, StateColumns columns) {
  return {kind, std::move(columns), tensor_table_bytes, make_tensor_optimizer<op_of>};
}

}  // namespace gptrain::optim
