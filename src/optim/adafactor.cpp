// Adafactor: second moments per row and column for matrices (ops/factored.h), per element for vectors. Steps are scaled
// by norms of whole matrices and vectors (ops/adafactor.h).
#include <algorithm>
#include <utility>
#include <vector>

#include "model/record.h"
#include "optim/element_optimizer.h"
#include "optim/tensor_optimizer.h"
#include "optim/types.h"
#include "optim/update_site.h"

namespace gptrain::inline optim {
namespace {

// Indices of columns; of_average counts columns of elements only.
constexpr size_t of_vectors = 0, of_rows = 1, of_cols = 2, of_average = 1;

// Tables that the ops read in device memory.
struct FactoredTables {
  std::vector<FactoredMatrix> matrices;              // matrices of the units that this rank holds
  std::vector<MatrixRange> summed, updated;          // ranges that this rank adds to sums; ranges that it updates
  std::vector<double> counts;                        // elements of each matrix and vector of the model
  int64_t num_sums = 0, num_rows = 0, num_cols = 0;  // num_sums: whole model; rows and cols: held matrices

  explicit FactoredTables(const ParameterStore& parameters);

  int64_t bytes() const {
    return table_bytes(matrices) + table_bytes(summed) + table_bytes(updated) + table_bytes(counts) +
           align_up(std::ssize(matrices) * dtype_bytes(DType::f64));
  }
  template <typename T>
  static int64_t table_bytes(const std::vector<T>& table) {
    return align_up(std::ssize(table) * static_cast<int64_t>(sizeof(T)));
  }

 private:
  void add_ranges(const ParameterStore& parameters, int64_t index, const PartNumbers& numbers, int64_t first_matrix);
};

FactoredTables::FactoredTables(const ParameterStore& parameters) {
  const ModelSpec& spec = parameters.spec();
  const PartNumbers numbers(spec, SummedParts::parts);
  for (int64_t index = 0; index < std::ssize(spec.tensors); ++index) {
    const TensorSpec& tensor = spec.tensors[index];
    std::vector<Section> parts = tensor.sections;
    if (parts.empty()) parts = {{tensor.shape[0], 1}};
    const int64_t width = tensor.is_matrix() ? tensor.shape[1] : 1;
    const bool held = parameters.layout().units[tensor.unit].elements > 0;
    const int64_t first_matrix = std::ssize(matrices);
    for (const Section& part : parts) {
      counts.push_back(static_cast<double>(part.rows * width));
      if (!tensor.is_matrix()) continue;
      if (held) {
        matrices.push_back({part.rows, width, num_sums, num_sums + part.rows, num_rows, num_cols});
        num_rows += part.rows;
        num_cols += width;
      }
      num_sums += part.rows + width;
    }
    if (tensor.is_matrix() && held) add_ranges(parameters, index, numbers, first_matrix);
  }
}

void FactoredTables::add_ranges(const ParameterStore& parameters, int64_t index, const PartNumbers& numbers,
                                int64_t first_matrix) {
  const TensorSpec& tensor = parameters.spec().tensors[index];
  const int64_t unit = tensor.unit;
  const UnitPiece piece = parameters.piece(unit);
  const UpdateRange held = parameters.update_range(unit);
  const int64_t unit_start = parameters.offset_in_summed(unit) - piece.first;  // offset in the buffer of gradients
  const ParameterLayout& layout = parameters.layout();
  const int64_t start = layout.segments[index].offset - layout.units[unit].offset;
  int64_t first_row = 0, part = numbers.first(index);  // first row, and number, of the matrix that contains a box
  for (const ShardBox& whole : parameters.shards()[index].boxes) {
    for (const auto& [box, number] : numbers.cut(tensor, index, whole)) {
      for (; part < number; ++part) first_row += tensor.sections[part - numbers.first(index)].rows;
      const int64_t box_first = start + box.local_offset;
      const auto add = [&](int64_t first, int64_t end, std::vector<MatrixRange>& ranges) {
        const int64_t from = std::max(first, box_first), to = std::min(end, box_first + box.count());
        if (from < to)
          ranges.push_back({.offset = unit_start + from,
                            .count = to - from,
                            .first = from - box_first,
                            .row = box.offset[0] - first_row,
                            .col = box.offset[1],
                            .cols = box.shape[1],
                            .matrix = first_matrix + number - numbers.first(index)});
      };
      if (box.owned) add(piece.first, piece.end(), summed);
      add(held.first, held.first + held.elements, updated);
    }
  }
}

int64_t elements_of(const std::vector<MatrixRange>& ranges) {
  int64_t elements = 0;
  for (const MatrixRange& range : ranges) elements += range.count;
  return elements;
}

int64_t adafactor_table_bytes(const ParameterStore& parameters) {
  return part_table_bytes(parameters) + TensorSums::table_bytes(parameters, SummedParts::parts) +
         FactoredTables(parameters).bytes();
}

// `Op` is Adafactor or AdafactorEma.
template <typename Op>
class AdafactorOptimizer final : public Optimizer {
 public:
  AdafactorOptimizer(const OptimizerConfig& config, const Op& op, const UpdateContext& context, uint64_t seed,
                     std::byte* tables)
      : context_(context),
        updates_(context, seed, tables, true, SummedParts::parts),
        part_sums_(context, tables + part_table_bytes(context.parameters), SummedParts::parts),
        op_(op) {
    const FactoredTables host(context.parameters);
    std::byte* next =
        tables + part_table_bytes(context.parameters) + TensorSums::table_bytes(context.parameters, SummedParts::parts);
    const auto put = [&]<typename T>(const std::vector<T>& table) {
      std::byte* const start = std::exchange(next, next + FactoredTables::table_bytes(table));
      if (!table.empty())
        context.backend.upload(start, table.data(), std::ssize(table) * static_cast<int64_t>(sizeof(T)));
      return reinterpret_cast<T*>(start);
    };
    const auto num_matrices = std::ssize(host.matrices);
    FactoredMatrix* const matrices = put(host.matrices);
    const Matrix gradients = context.parameters.summed_gradients();
    sums_ = {.matrices = matrices,
             .ranges = put(host.summed),
             .num_ranges = std::ssize(host.summed),
             .elements = elements_of(host.summed),
             .gradients = gradients,
             .sums = Matrix(nullptr, DType::f64, 1, host.num_sums)};
    MatrixRange* const updated = put(host.updated);
    op_.counts = Matrix(put(host.counts), DType::f64, 1, std::ssize(host.counts));
    op_.sums = part_sums_.sums();
    const Matrix means(next, DType::f64, 1, num_matrices);
    const Matrix rows(context.parameters.column(of_rows, 0), DType::f32, 1, host.num_rows);
    const Matrix cols(context.parameters.column(of_cols, 0), DType::f32, 1, host.num_cols);
    moments_ = {.matrices = matrices,
                .num_matrices = num_matrices,
                .state = context.state,
                .beta2_decay = config.beta2_decay,
                .eps = config.eps,
                .sums = {},
                .rows = rows,
                .cols = cols,
                .means = means};
    direction_ = {.matrices = matrices,
                  .ranges = updated,
                  .num_ranges = std::ssize(host.updated),
                  .elements = elements_of(host.updated),
                  .state = context.state,
                  .rows = rows,
                  .cols = cols,
                  .means = means,
                  .gradients = gradients};
    vectors_.beta2_decay = config.beta2_decay;
    vectors_.eps = config.eps;
  }

  // Replaces the gradients by u (ops/adafactor.h).
  Matrix measure() override {
    measure_matrices();
    for (int64_t unit = 0; unit < context_.parameters.num_parameter_units(); ++unit) {
      updates_.update_before_last(unit, [this](const ElementUpdate& operands) {
        AdafactorVectors op = vectors_;
        static_cast<ElementUpdate&>(op) = operands;
        op.master = operands.gradients;
        op.weights = {};
        op.columns = {operands.columns[of_vectors]};
        context_.backend.run(op);
      });
    }
    part_sums_.measure([this](const ElementUpdate& operands, int64_t first_part, const Matrix& sums) {
      AdafactorNorms op{.update = op_, .first_tensor = first_part, .sums = sums};
      static_cast<ElementUpdate&>(op.update) = operands;
      op.update.columns = {};
      context_.backend.run(op);
    });
    return part_sums_.sums();
  }

  void update(int64_t unit) override {
    const auto run = [this](const ElementUpdate& operands) {
      Op op = op_;
      static_cast<ElementUpdate&>(op) = operands;
      op.columns = {operands.columns[of_average]};
      context_.backend.run(op);
    };
    updates_.update_before_last(unit, run);
    updates_.update_last(unit, run);
  }

 private:
  void measure_matrices() {
    WorkspaceFrame frame(context_.workspace);
    const Matrix sums = frame.take(DType::f64, 1, sums_.sums.cols);
    sums_.sums = moments_.sums = sums;
    context_.backend.run(sums_);
    sum_over_world(context_.groups, sums);
    context_.backend.run(moments_);
    context_.backend.run(direction_);
  }

  UpdateContext context_;
  ElementUpdates updates_;
  TensorSums part_sums_;
  FactoredSums sums_;
  FactoredMoments moments_;
  FactoredDirection direction_;
  AdafactorVectors vectors_;
  Op op_;
};

std::unique_ptr<Optimizer> make_adafactor(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                          std::byte* tables) {
  Adafactor op;
  op.clip_threshold = config.clip_threshold;
  op.eps2 = config.eps2;
  op.scale_parameter = config.scale_parameter;
  op.weight_decay = config.weight_decay;
  if (config.ema == 0) return std::make_unique<AdafactorOptimizer<Adafactor>>(config, op, context, seed, tables);
  AdafactorEma averaged{op};
  averaged.ema = config.ema;
  return std::make_unique<AdafactorOptimizer<AdafactorEma>>(config, averaged, context, seed, tables);
}

}  // namespace

OptimizerType adafactor_type() {
  using enum StateGranularity;
  return {OptimizerKind::adafactor,
          {{"exp_avg_sq", DType::f32, element_of_vectors},
           {"exp_avg_sq_row", DType::f32, row},
           {"exp_avg_sq_col", DType::f32, column}},
          adafactor_table_bytes,
          make_adafactor};
}

}  // namespace gptrain::optim
