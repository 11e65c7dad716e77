// Muon: one rank orthogonalises the whole momentum of a block's matrix. All other tensors have AdamW's update.
#include <algorithm>
#include <cmath>

#include "model/record.h"
#include "optim/block_matrices.h"
#include "optim/element_optimizer.h"
#include "optim/orthogonalise.h"
#include "optim/types.h"

namespace gptrain::inline optim {
namespace {

// RETURNS the scale of arXiv 2502.16982: the root mean square of AdamW's steps is 0.2 to 0.4, that of an orthogonal
// matrix 1 / sqrt(max(rows, columns)).
double step_scale(const BlockMatrix& matrix) {
  return 0.2 * std::sqrt(static_cast<double>(std::max(matrix.rows, matrix.cols)));
}

// RETURNS a SquaredNorm segment for each distinct size of the stage's matrices.
std::vector<SquaredNorm::Segment> matrix_segments(const ModelSpec& spec, const ParameterLayout& layout) {
  std::vector<int64_t> counts;
  for (const BlockMatrix& matrix : block_matrices(spec, layout)) counts.push_back(matrix.count());
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  std::vector<SquaredNorm::Segment> segments;
  for (const int64_t count : counts) segments.push_back({0, count, 0});
  return segments;
}

int64_t segments_size(const std::vector<SquaredNorm::Segment>& segments) {
  return std::ssize(segments) * static_cast<int64_t>(sizeof(SquaredNorm::Segment));
}

int64_t muon_table_bytes(const ParameterStore& parameters) {
  return element_table_bytes(parameters) +
         align_up(segments_size(matrix_segments(parameters.spec(), parameters.layout()))) +
         align_up(dtype_bytes(DType::f64));
}

DType products_dtype(const OptimizerConfig& config, DType compute) {
  return compute == DType::bf16 && config.newton_schulz == NewtonSchulzProducts::as_compute ? DType::bf16 : DType::f32;
}

// `Step` and `Rest` are Muon and AdamW, or MuonEma and AdamWEma.
template <typename Step, typename Rest>
class MuonOptimizer final : public Optimizer {
 public:
  MuonOptimizer(const OptimizerConfig& config, const Step& step, const Rest& rest, const UpdateContext& context,
                uint64_t seed, std::byte* tables)
      : step_(step),
        rest_(rest),
        products_(products_dtype(config, context.parameters.sharding().compute)),
        context_(context),
        updates_(context, seed, tables, true),
        exchange_(context),
        segments_(matrix_segments(context.parameters.spec(), context.parameters.layout())) {
    momentum_.momentum = config.momentum;
    momentum_.nesterov = config.nesterov;
    std::byte* const own = tables + element_table_bytes(context.parameters);
    device_segments_ = reinterpret_cast<const SquaredNorm::Segment*>(own);
    squared_norm_ = reinterpret_cast<double*>(own + align_up(segments_size(segments_)));
    if (!segments_.empty()) context.backend.upload(own, segments_.data(), segments_size(segments_));
  }

  // Replaces the gradients of the blocks' matrices by the orthogonalised momentum.
  Matrix measure() override {
    for (int64_t unit = 0; unit < context_.parameters.num_parameter_units(); ++unit) {
      updates_.update_last(unit, [&](const ElementUpdate& operands) {
        fetch_to_change(unit);
        MuonMomentum op = momentum_;
        static_cast<ElementUpdate&>(op) = operands;
        op.master = operands.gradients;
        op.weights = {};
        op.columns = {operands.columns[0]};
        context_.backend.run(op);
      });
    }
    // Workspace of equal size on every rank, though some may have no matrix, or none of the largest.
    const int64_t elements = exchange_.most_elements(), square = exchange_.most_square();
    WorkspaceFrame frame(context_.workspace);
    const auto take = [&frame](DType dtype, int64_t count) {
      return static_cast<std::byte*>(frame.take(dtype, 1, count).data);
    };
    std::byte* const whole = exchange_.gathers() ? take(DType::f32, elements) : nullptr;
    // Transfers and products never run at the same time, so `parts` serves both.
    std::byte* const parts = take(exchange_.gathers() ? DType::f32 : products_, elements);
    const OrthogonaliseMemory memory{.products = products_,
                                     .x = take(products_, elements),
                                     .y = parts,
                                     .a = take(products_, square),
                                     .b = take(products_, square)};
    for (int64_t round = 0; round < exchange_.num_rounds(); ++round) {
      exchange_.play(round, whole, parts, [&](const BlockMatrix& matrix, const Matrix& values) {
        orthogonalise(values, step_scale(matrix), segment_of(matrix), squared_norm_, memory, context_.backend);
      });
    }
    return {};
  }

  void update(int64_t unit) override {
    updates_.update_before_last(unit, [this](const ElementUpdate& operands) {
      Rest op = rest_;
      static_cast<ElementUpdate&>(op) = operands;
      context_.backend.run(op);
    });
    updates_.update_last(unit, [this](const ElementUpdate& operands) {
      Step op = step_;
      static_cast<ElementUpdate&>(op) = operands;
      op.columns = {operands.columns[2]};  // the average, if there is one
      context_.backend.run(op);
    });
  }

 private:
  // Reads the unit's state, whose momentum changes, if it is on disk.
  void fetch_to_change(int64_t unit) const {
    if (context_.away == nullptr || !context_.parameters.state_layout().lands(unit)) return;
    context_.away->fetch(unit);
    context_.away->change();
  }
  const SquaredNorm::Segment* segment_of(const BlockMatrix& matrix) const {
    const auto found = std::find_if(segments_.begin(), segments_.end(), [&matrix](const SquaredNorm::Segment& segment) {
      return segment.count == matrix.count();
    });
    return device_segments_ + (found - segments_.begin());
  }

  Step step_;
  Rest rest_;
  MuonMomentum momentum_;
  DType products_;
  UpdateContext context_;
  ElementUpdates updates_;
  MatrixExchange exchange_;
  std::vector<SquaredNorm::Segment> segments_;
  const SquaredNorm::Segment* device_segments_;
  double* squared_norm_;  // device memory
};

std::unique_ptr<Optimizer> make_muon(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                     std::byte* tables) {
  Muon step;
  step.weight_decay = config.weight_decay;
  const auto rest = adam_op<AdamW>(config);
  if (config.ema == 0) return std::make_unique<MuonOptimizer<Muon, AdamW>>(config, step, rest, context, seed, tables);
  MuonEma averaged_step{step};
  AdamWEma averaged_rest{rest};
  averaged_step.ema = averaged_rest.ema = config.ema;
  return std::make_unique<MuonOptimizer<MuonEma, AdamWEma>>(config, averaged_step, averaged_rest, context, seed,
                                                            tables);
}

}  // namespace

OptimizerType muon_type() {
  const StateColumn second{"exp_avg_sq", DType::f32, StateGranularity::element_outside_matrices};
  return {OptimizerKind::muon, {{"exp_avg"}, second}, muon_table_bytes, make_muon};
}

}  // namespace gptrain::optim
