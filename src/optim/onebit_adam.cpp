#include "optim/element_optimizer.h"
#include "optim/types.h"

namespace gptrain::inline optim {
namespace {

// AdamW; where momenta are summed, updates with frozen variances.
class OnebitAdam final : public Optimizer {
 public:
  OnebitAdam(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed, std::byte* tables)
      : adamw_(adam_op<AdamW>(config)),
        frozen_(adam_op<FrozenAdam>(config)),
        backend_(context.backend),
        updates_(context, seed, tables) {
    frozen_.frozen_updates = config.freeze_step;
  }

  // Compressed sums are those of momenta.
  void expect_sums(SumsOfStep sums, const GradientMessages& messages) override {
    momenta_ = sums == SumsOfStep::compressed ? &messages : nullptr;
  }

  void update(int64_t unit) override {
    const auto run = [&](auto op) {
      updates_.update(unit, [&](const ElementUpdate& operands) {
        static_cast<ElementUpdate&>(op) = operands;
        backend_.run(op);
      });
    };
    if (momenta_ != nullptr && momenta_->units[static_cast<size_t>(unit)].is_coded()) {
      run(frozen_);
    } else {
      run(adamw_);
    }
  }

 private:
  AdamW adamw_;
  FrozenAdam frozen_;
  Backend& backend_;
  ElementUpdates updates_;
  const GradientMessages* momenta_ = nullptr;  // null: the updates read gradients
};

std::unique_ptr<Optimizer> make_onebit_adam(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                            std::byte* tables) {
  return std::make_unique<OnebitAdam>(config, context, seed, tables);
}

}  // namespace

MomentumSums momentum_sums(const OptimizerConfig& config) { return {.beta1 = config.beta1, .moment = 0}; }

OptimizerType onebit_adam_type() {
  return {OptimizerKind::onebit_adam,
          {{"exp_avg"}, {"exp_avg_sq"}, {"server_error"}},
          element_table_bytes,
          make_onebit_adam};
}

}  // namespace gptrain::optim
