// AdamW with 8-bit moments for matrices that are not small. Norms, biases and small tensors have f32 moments.
#include "optim/element_optimizer.h"
#include "optim/types.h"

namespace gptrain::inline optim {
namespace {

// Indices of columns.
constexpr size_t first_codes = 2, first_scales = 4;

StateColumns adamw_8bit_columns() {
  using enum StateGranularity;
  return {{"exp_avg", DType::f32, element_outside_blocks},
          {"exp_avg_sq", DType::f32, element_outside_blocks},
          {.name = "exp_avg_codes", .dtype = DType::u8, .granularity = element_in_blocks},
          {.name = "exp_avg_sq_codes", .dtype = DType::u8, .granularity = element_in_blocks, .has_sign = false},
          {"exp_avg_scales", DType::f32, block},
          {"exp_avg_sq_scales", DType::f32, block}};
}

// `Wide` and `Coded` are AdamW and AdamW8bit, or AdamWEma and AdamW8bitEma.
template <typename Wide, typename Coded>
class AdamW8bitOptimizer final : public Optimizer {
 public:
  AdamW8bitOptimizer(const Wide& wide, const Coded& coded, const UpdateContext& context, uint64_t seed,
                     std::byte* tables)
      : wide_(wide),
        coded_(coded),
        parameters_(context.parameters),
        backend_(context.backend),
        updates_(context, seed, tables, true) {}

  void update(int64_t unit) override {
    updates_.update_before_last(unit, [this](const ElementUpdate& operands) {
      Wide op = wide_;
      static_cast<ElementUpdate&>(op) = operands;
      backend_.run(op);
    });
    updates_.update_last(unit, [this, unit](const ElementUpdate& operands) {
      Coded op = coded_;
      static_cast<ElementUpdate&>(op) = operands;
      const int64_t elements = operands.gradients.cols;
      for (size_t i = 0; i < op.scales.size(); ++i) {
        op.columns[i] = Matrix(parameters_.column(first_codes + i, unit), DType::u8, 1, elements);
        op.scales[i] = Matrix(parameters_.column(first_scales + i, unit), DType::f32, 1, elements / state_block);
      }
      backend_.run(op);
    });
  }

 private:
  Wide wide_;
  Coded coded_;
  const ParameterStore& parameters_;
  Backend& backend_;
  ElementUpdates updates_;
};

std::unique_ptr<Optimizer> make_adamw_8bit(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                           std::byte* tables) {
  const auto wide = adam_op<AdamW>(config);
  AdamW8bit coded;
  static_cast<AdamW&>(coded) = wide;
  coded.by_tables = context.on_host_of_gpu;
  if (config.ema == 0)
    return std::make_unique<AdamW8bitOptimizer<AdamW, AdamW8bit>>(wide, coded, context, seed, tables);
  AdamWEma averaged_wide{wide};
  AdamW8bitEma averaged_coded{coded};
  averaged_wide.ema = averaged_coded.ema = config.ema;
  return std::make_unique<AdamW8bitOptimizer<AdamWEma, AdamW8bitEma>>(averaged_wide, averaged_coded, context, seed,
                                                                      tables);
}

}  // namespace

OptimizerType adamw_8bit_type() {
  return {OptimizerKind::adamw_8bit, adamw_8bit_columns(), element_table_bytes, make_adamw_8bit};
}

}  // namespace gptrain::optim
