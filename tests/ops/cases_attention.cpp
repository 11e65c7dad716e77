// Cases of attention, forward and backward.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "attention_reference.h"
#include "attention_shapes.h"
#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_attention {
namespace {

// Compares the gradients with central differences of the float64 forward, for some elements of each input.
void derivative_case(Trial& trial, const AttentionShape& shape) {
  const AttentionGradients operands = run_attention_backward(trial, shape, DType::f32);
  AttentionInputs inputs{.q = operands.q.values(),
                         .k = operands.k.values(),
                         .v = operands.v.values(),
                         .d_o = operands.d_o.values(),
                         .sinks = shape.sinks ? operands.sinks->values() : std::vector<double>{}};
  const auto loss = [&] {
    const std::vector<double> o = attention_reference(shape, DType::f32, inputs).o;
    double sum = 0;
    for (size_t i = 0; i < o.size(); ++i) sum += o[i] * inputs.d_o[i];
    return sum;
  };
  const auto compare = [&](std::string_view what, std::vector<double>& values, const Operand& gradient) {
    const std::vector<double> actual = gradient.values();
    constexpr double step = 1e-4;
    constexpr double bound = 1e-5;  // rounding of the op; central differences are exact to 1e-8
    for (int i = 0; i < 12; ++i) {
      const auto element = static_cast<size_t>(trial.random.below(static_cast<int64_t>(values.size())));
      const double before = values[element];
      values[element] = before + step;
      const double up = loss();
      values[element] = before - step;
      const double down = loss();
      values[element] = before;
      const double expected = (up - down) / (2 * step);
      trial.expect_true(
          std::abs(actual[element] - expected) <= bound * (1 + std::abs(expected)),
          fmt::format("{} of element {} is {}, central difference {}", what, element, actual[element], expected));
    }
  };
  compare("dq", inputs.q, operands.dq);
  compare("dk", inputs.k, operands.dk);
  compare("dv", inputs.v, operands.dv);
  if (shape.sinks) compare("d_sinks", inputs.sinks, *operands.d_sinks);
}

// Checks that a rank with some heads computes for them the bits of a rank with all heads: slices of q, k and v, of o
// and the gradients.
void head_slices_case(Trial& trial, const AttentionShape& shape, DType dtype) {
  const Operand& q = trial.input(dtype, shape.rows(), shape.q_cols());
  const Operand& k = trial.input(dtype, shape.rows(), shape.kv_cols());
  const Operand& v = trial.input(dtype, shape.rows(), shape.kv_cols());
  const Operand& d_o = trial.input(dtype, shape.rows(), shape.q_cols());
  const Dropout dropout = dropout_of(trial, shape);
  const AttentionMask mask = mask_of(trial, shape);
  // Returns o, dq, dk, dv of heads [first, first + heads) and their key-value heads.
  const auto run = [&](int64_t first, int64_t heads) {
    const int64_t kv_heads = heads * shape.kv_heads / shape.heads;
    const int64_t kv_first = first * shape.kv_heads / shape.heads;
    const auto of_heads = [&](const Operand& operand) {
      return operand.matrix().column_range(first * shape.head_size, heads * shape.head_size);
    };
    const auto of_kv_heads = [&](const Operand& operand) {
      return operand.matrix().column_range(kv_first * shape.head_size, kv_heads * shape.head_size);
    };
    Operand& o = trial.output(dtype, shape.rows(), heads * shape.head_size);
    Operand& lse = trial.output(DType::f32, shape.batch * heads, shape.tokens);
    Dropout own = dropout;
    own.first_head = first;
    const AttentionForward forward{.batch = shape.batch,
                                   .sequence_length = shape.tokens,
                                   .num_heads = heads,
                                   .num_kv_heads = kv_heads,
                                   .head_size = shape.head_size,
                                   .scale = shape.used_scale(),
                                   .softcap = shape.softcap,
                                   .mask = mask,
                                   .dropout = own,
                                   .q = of_heads(q),
                                   .k = of_kv_heads(k),
                                   .v = of_kv_heads(v),
                                   .o = o.matrix(),
                                   .lse = lse.matrix()};
    trial.run(forward);
    Operand& dq = trial.output(dtype, shape.rows(), heads * shape.head_size);
    Operand& dk = trial.output(dtype, shape.rows(), kv_heads * shape.head_size);
    Operand& dv = trial.output(dtype, shape.rows(), kv_heads * shape.head_size);
    trial.run(AttentionBackward{.batch = shape.batch,
                                .sequence_length = shape.tokens,
                                .num_heads = heads,
                                .num_kv_heads = kv_heads,
                                .head_size = shape.head_size,
                                .scale = forward.scale,
                                .softcap = shape.softcap,
                                .mask = forward.mask,
                                .dropout = own,
                                .q = forward.q,
                                .k = forward.k,
                                .v = forward.v,
                                .o = o.matrix(),
                                .lse = lse.matrix(),
                                .d_o = of_heads(d_o),
                                .dq = dq.matrix(),
                                .dk = dk.matrix(),
                                .dv = dv.matrix()});
    return std::array<const Operand*, 4>{&o, &dq, &dk, &dv};
  };
  const auto whole = run(0, shape.heads);
  constexpr std::array<std::string_view, 4> names{"o", "dq", "dk", "dv"};
  const int64_t slice = shape.heads / shape.kv_heads;  // the fewest that need no replica
  for (int64_t first = 0; first < shape.heads; first += slice) {
    const auto part = run(first, slice);
    for (size_t i = 0; i < names.size(); ++i) {
      const Matrix columns = part[i]->matrix();
      const int64_t start = columns.cols * (first / slice);
      bool equal = true;
      for (int64_t row = 0; row < columns.rows; ++row)
        for (int64_t col = 0; col < columns.cols; ++col)
          equal = equal && part[i]->at(row, col) == whole[i]->at(row, start + col);
      trial.expect_true(equal,
                        fmt::format("{} of heads {} to {}: the bits of the whole", names[i], first, first + slice));
    }
  }
}

// Checks that documents of a packed sequence give the bits that each gives alone, whatever the other holds: if it
// begins at a tile boundary, no query of its tiles reads a tile of the other. The document chosen by `first_is_other`
// is NaN.
void packed_case(Trial& trial, DType dtype, int64_t window, bool first_is_other) {
  constexpr int64_t first = 64, second = 70, head_size = 24;
  const AttentionShape shape{
      .batch = 1, .tokens = first + second, .heads = 1, .kv_heads = 1, .head_size = head_size, .window = window};
  const int64_t from = first_is_other ? first : 0, tokens = first_is_other ? second : first;
  std::vector<int32_t> starts(first + second, 0);
  std::fill(starts.begin() + first, starts.end(), first);
  const int32_t* const document_starts = Trial::pointer<int32_t>(trial.input_array(starts));
  // Returns normal numbers, and a copy with the other document's rows replaced.
  const auto operand = [&](int64_t cols) {
    const Operand& sound = trial.input(dtype, shape.rows(), cols);
    std::vector<double> values = sound.values();
    for (int64_t row = 0; row < shape.rows(); ++row) {
      const bool of_other = row < from || row >= from + tokens;
      for (int64_t col = 0; col < cols && of_other; ++col)
        values[static_cast<size_t>(row * cols + col)] = std::numeric_limits<double>::quiet_NaN();
    }
    return std::array<Matrix, 2>{trial.input(dtype, shape.rows(), cols, values).matrix(), sound.matrix()};
  };
  const auto q = operand(shape.q_cols()), k = operand(shape.kv_cols()), v = operand(shape.kv_cols()),
             d_o = operand(shape.q_cols());
  // Returns o, dq, dk, dv of the packed sequence, or of the document's rows as a sequence.
  const auto run = [&](bool packed) {
    const int64_t length = packed ? shape.rows() : tokens;
    const auto rows = [&](const std::array<Matrix, 2>& both) {
      return packed ? both[0] : both[1].row_range(from, tokens);
    };
    Operand& o = trial.output(dtype, length, shape.q_cols());
    Operand& lse = trial.output(DType::f32, shape.heads, length);
    const AttentionForward forward{
        .batch = 1,
        .sequence_length = length,
        .num_heads = shape.heads,
        .num_kv_heads = shape.kv_heads,
        .head_size = head_size,
        .scale = shape.used_scale(),
        .softcap = shape.softcap,
        .mask = {.pattern = window_pattern(window), .document_starts = packed ? document_starts : nullptr},
        .dropout = {},
        .q = rows(q),
        .k = rows(k),
        .v = rows(v),
        .o = o.matrix(),
        .lse = lse.matrix()};
    trial.run(forward);
    Operand& dq = trial.output(dtype, length, shape.q_cols());
    Operand& dk = trial.output(dtype, length, shape.kv_cols());
    Operand& dv = trial.output(dtype, length, shape.kv_cols());
    trial.run(AttentionBackward{.batch = 1,
                                .sequence_length = length,
                                .num_heads = shape.heads,
                                .num_kv_heads = shape.kv_heads,
                                .head_size = head_size,
                                .scale = shape.used_scale(),
                                .softcap = shape.softcap,
                                .mask = forward.mask,
                                .dropout = {},
                                .q = forward.q,
                                .k = forward.k,
                                .v = forward.v,
                                .o = o.matrix(),
                                .lse = lse.matrix(),
                                .d_o = rows(d_o),
                                .dq = dq.matrix(),
                                .dk = dk.matrix(),
                                .dv = dv.matrix()});
    return std::array<const Operand*, 4>{&o, &dq, &dk, &dv};
  };
  const auto alone = run(false), packed = run(true);
  constexpr std::array<std::string_view, 4> names{"o", "dq", "dk", "dv"};
  for (size_t i = 0; i < names.size(); ++i) {
    bool equal = true;
    for (int64_t row = 0; row < tokens; ++row)
      for (int64_t col = 0; col < alone[i]->matrix().cols; ++col)
        equal = equal && alone[i]->at(row, col) == packed[i]->at(from + row, col);
    trial.expect_true(equal, fmt::format("{} of the packed document: the bits of the document alone", names[i]));
  }
}

void rejected_case(Trial& trial) {
  const Operand& x = trial.input(DType::f32, 4, 8);
  const Operand& starts = trial.input_array(std::vector<int32_t>(4, 0));
  const auto reject = [&](const AttentionMask& mask, std::string_view why) {
    trial.expect_rejected(AttentionForward{.batch = 1,
                                           .sequence_length = 4,
                                           .num_heads = 1,
                                           .num_kv_heads = 1,
                                           .head_size = 8,
                                           .scale = 1,
                                           .mask = mask,
                                           .dropout = {},
                                           .q = x.matrix(),
                                           .k = x.matrix(),
                                           .v = x.matrix(),
                                           .o = trial.output(DType::f32, 4, 8).matrix(),
                                           .lse = trial.output(DType::f32, 1, 4).matrix()},
                          why);
  };
  reject({.causal = false, .pattern = window_pattern(2)}, "a window without a causal mask");
  reject({.causal = false, .document_starts = Trial::pointer<int32_t>(starts)}, "documents without a causal mask");
  reject({.pattern = window_pattern(-1)}, "a negative window");
  reject({.max_documents = 1}, "room for documents without documents");
  reject({.document_starts = Trial::pointer<int32_t>(starts), .max_documents = -1}, "negative room for documents");
}

void add_cases(Suite& suite) {
  std::vector<AttentionShape> all(std::begin(shapes), std::end(shapes));
  all.insert(all.end(), std::begin(masked_shapes), std::end(masked_shapes));
  all.insert(all.end(), std::begin(capped_shapes), std::end(capped_shapes));
  all.insert(all.end(), std::begin(sink_shapes), std::end(sink_shapes));
  for (const AttentionShape& shape : all) {
    for (const DType dtype : compute_dtypes) {
      if (is_left_out(dtype, &shape - all.data() + 2) && shape.head_size < 256) continue;
      const std::string description = describe(shape, dtype_name(dtype));
      suite.add<AttentionForward>(description, [=](Trial& trial) { attention_forward_case(trial, shape, dtype); });
      suite.add<AttentionBackward>(description, [=](Trial& trial) { attention_backward_case(trial, shape, dtype); });
    }
  }
  for (const AttentionShape& shape : document_shapes) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      if (is_left_out(dtype, &shape - document_shapes)) continue;
      const std::string description = describe(shape, dtype_name(dtype));
      suite.add<AttentionForward>(description, [=](Trial& trial) { attention_forward_case(trial, shape, dtype); });
      suite.add<AttentionBackward>(description, [=](Trial& trial) { attention_backward_case(trial, shape, dtype); });
    }
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool first_is_other : {true, false})
      suite.add<AttentionBackward>(
          fmt::format("two documents, the {} of NaN {}", first_is_other ? "first" : "second", dtype_name(dtype)),
          [=](Trial& trial) { packed_case(trial, dtype, first_is_other ? 0 : 33, first_is_other); });
  }
  suite.add<AttentionForward>("masks that are refused", rejected_case);
  for (const AttentionShape& shape : sliced_shapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      suite.add<AttentionForward>(describe(shape, fmt::format("{} slices of heads", dtype_name(dtype))),
                                  [=](Trial& trial) { head_slices_case(trial, shape, dtype); });
    }
  }
  for (const AttentionShape& shape : differentiated_shapes) {
    suite.add<AttentionBackward>(describe(shape, "f32 central differences"),
                                 [=](Trial& trial) { derivative_case(trial, shape); });
  }
}

void add_benches(Suite& suite) {
  for (const AttentionShape& shape : bench_shapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (dtype == DType::f32 && shape.documents == Documents::several) continue;
      add_attention_benches(suite, shape, dtype);
    }
  }
}

const Registration cases(add_cases);
const Registration benches(add_benches);

}  // namespace
}  // namespace gptrain::ops_test::cases_attention
