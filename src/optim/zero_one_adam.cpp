// 0/1 Adam (arXiv 2202.06009): signs in place of gradients, then steps without any exchange. Units without coded
// elements are trained by AdamW, with sums of gradients in every step.
#include <algorithm>
#include <vector>

#include "model/record.h"
#include "optim/element_optimizer.h"
#include "optim/types.h"

namespace gptrain::inline optim {
namespace {

constexpr size_t moment_column = 0;

// Offsets and size of UpdateContext::exchange, in bytes. Its parts: the exchange's StepState, the weights at the last
// exchange (anchors), and a unit's messages.
struct ExchangeMemory {
  int64_t anchors, messages, bytes;
};

ExchangeMemory exchange_memory(const ParameterStore& parameters, const GradientMessages& messages) {
  const int64_t elements = parameters.layout().elements;
  int64_t longest = 0;
  for (const UnitMessages& unit : messages.units) longest = std::max(longest, unit.buffer_bytes(false));
  const int64_t anchors = align_up(sizeof(StepState)),
                of_messages = anchors + align_up(elements * dtype_bytes(DType::f32));
  return {anchors, of_messages, of_messages + align_up(longest)};
}

class ZeroOne final : public Optimizer, public WeightAverage {
 public:
  ZeroOne(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed, std::byte* tables)
      : adamw_(adam_op<AdamW>(config)),
        op_(adam_op<ZeroOneAdam>(config)),
        context_(context),
        updates_(context, seed, tables) {
    if (context.compression == nullptr) return;
    memory_ = exchange_memory(context.parameters, context.compression->messages);
    GradientCompression compression = *context.compression;
    compression.state = state();
    exchange_ = make_compressed_reducer({context.parameters, context.groups, context.backend}, compression);
  }

  void expect_sums(SumsOfStep sums, const GradientMessages&) override { sums_ = sums; }
  WeightAverage* average() override { return this; }

  // Adds up the rates of steps without sums.
  Matrix measure() override {
    if (sums_ != SumsOfStep::none) return {};
    if (exchanged_) forget_rates();
    StepState state;
    context_.backend.download(&state, context_.state, sizeof state);
    context_.backend.synchronize();
    if (state.skip != 0) return {};
    rates_ += static_cast<double>(state.learning_rate);
    ++num_updates_;
    return {};
  }

  void update(int64_t unit) override {
    if (!is_coded(unit)) return update_plainly(unit);
    run(unit, sums_ == SumsOfStep::plain  ? ZeroOneUpdate::variance
              : sums_ == SumsOfStep::none ? ZeroOneUpdate::local
                                          : ZeroOneUpdate::moment);
  }

  // With nothing but skipped steps since the last exchange, all ranks have the same weights already.
  void average(int64_t unit) override {
    if (num_updates_ == 0 || !is_coded(unit)) return;
    exchanged_ = true;
    StepState state;
    state.learning_rate = static_cast<float>(rates_);
    state.gradient_scale = 1;
    context_.backend.upload(this->state(), &state, sizeof state);
    run(unit, ZeroOneUpdate::difference);
    sum(unit);
    run(unit, ZeroOneUpdate::exchange);
  }

  void restart() override {
    forget_rates();
    if (context_.compression == nullptr) return;
    for (int64_t unit = 0; unit < context_.parameters.num_parameter_units(); ++unit) {
      const UpdateRange range = context_.parameters.update_range(unit);
      if (range.elements > 0)
        context_.backend.run(Cast{.from = Matrix(range.master, DType::f32, 1, range.elements), .to = anchors(unit)});
    }
  }

 private:
  bool is_coded(int64_t unit) const {
    return context_.compression != nullptr &&
           context_.compression->messages.units[static_cast<size_t>(unit)].is_coded();
  }
  StepState* state() const { return reinterpret_cast<StepState*>(context_.exchange); }
  Matrix anchors(int64_t unit) const {
    const UnitRange& range = context_.parameters.layout().units[unit];
    return {context_.exchange + memory_.anchors + range.offset * dtype_bytes(DType::f32), DType::f32, 1,
            range.elements};
  }

  void forget_rates() {
    exchanged_ = false;
    rates_ = 0;
    num_updates_ = 0;
  }

  void run(int64_t unit, ZeroOneUpdate update) {
    updates_.update(unit, [&](const ElementUpdate& operands) {
      ZeroOneAdam op = op_;
      static_cast<ElementUpdate&>(op) = operands;
      op.update = update;
      op.columns.back() = anchors(unit);
      if (update == ZeroOneUpdate::difference || update == ZeroOneUpdate::exchange) {
        op.state = state();
        op.share = 1 / static_cast<double>(context_.parameters.replica_rank(unit).size);
      }
      context_.backend.run(op);
    });
  }

  void update_plainly(int64_t unit) {
    updates_.update(unit, [&](const ElementUpdate& operands) {
      AdamW op = adamw_;
      static_cast<ElementUpdate&>(op) = operands;
      context_.backend.run(op);
    });
  }

  // Sums the unit's values in the moments' place over ranks.
  void sum(int64_t unit) {
    const UnitGradients of{context_.parameters.column(moment_column, unit), context_.exchange + memory_.messages};
    Lane& lane = context_.groups.lane(LaneKind::gradients);
    for (int phase = 0; phase < exchange_->phases(unit); ++phase) lane.wait(exchange_->begin(unit, phase, of));
    exchange_->finish(unit, of);
    exchange_->end_step(unit);
  }

  AdamW adamw_;
  ZeroOneAdam op_;
  const UpdateContext context_;
  ElementUpdates updates_;
  ExchangeMemory memory_{};
  std::unique_ptr<GradientReducer> exchange_;
  SumsOfStep sums_ = SumsOfStep::plain;
  // Since the last exchange: the sum of the rates of steps that were not skipped, and their number.
  double rates_ = 0;
  int64_t num_updates_ = 0;
  bool exchanged_ = false;  // an exchange has read them
};

std::unique_ptr<Optimizer> make_zero_one_adam(const OptimizerConfig& config, const UpdateContext& context,
                                              uint64_t seed, std::byte* tables) {
  return std::make_unique<ZeroOne>(config, context, seed, tables);
}

}  // namespace

int64_t exchange_bytes(const OptimizerConfig& config, const ParameterStore& parameters,
                       const GradientMessages& messages) {
  if (config.type != OptimizerKind::zero_one_adam || messages.num_residuals == 0) return 0;
  return exchange_memory(parameters, messages).bytes;
}

OptimizerType zero_one_adam_type() {
  return {OptimizerKind::zero_one_adam,
          {{"exp_avg"}, {"exp_avg_sq"}, {"server_error"}},
          element_table_bytes,
          make_zero_one_adam};
}

}  // namespace gptrain::optim
