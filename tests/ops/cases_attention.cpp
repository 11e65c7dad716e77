// Cases of attention, forward and backward.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "attention_reference.h"
#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_attention {
namespace {

// Sizes of one, primes, sizes around the 64-wide tiles, several tiles and tasks, shared keys, and scores so large that
// most probabilities vanish.
const AttentionShape shapes[] = {
    {1, 1, 1, 1, 1},
    {2, 1, 3, 1, 5},
    {2, 7, 2, 2, 3},
    {1, 63, 2, 1, 16, true, 0, 0, 5},
    {2, 64, 2, 2, 64},
    {1, 65, 4, 2, 33, true, 0.1, 0, 3},
    {1, 67, 2, 1, 256, false},
    {2, 131, 6, 2, 17, false, 0.25, 0, 1},
    {1, 150, 2, 2, 80, true, 0.5},
    {1, 321, 3, 3, 64, true, 0, 0, 7},
    {1, 97, 1, 1, 128, true, 0, 3},
    {3, 130, 1, 1, 1, true, 0.9},
};

// Windows of one, two and an odd number of keys, of a tile and a token less and more, and of the whole sequence;
// documents, with windows, shared keys and dropout. The last are shapes that a device's library may serve.
const AttentionShape masked_shapes[] = {
    {1, 70, 2, 1, 16, true, 0, 0, 3, 1},
    {2, 9, 2, 2, 5, true, 0, 0, 0, 2},
    {1, 150, 1, 1, 32, true, 0.2, 0, 0, 37},
    {1, 140, 2, 1, 24, true, 0, 0, 1, 63},
    {1, 140, 1, 1, 64, true, 0, 0, 0, 64},
    {1, 140, 1, 1, 80, true, 0.1, 0, 0, 65},
    {1, 200, 1, 1, 16, true, 0, 0, 0, 129},
    {1, 67, 1, 1, 16, true, 0, 0, 0, 67},
    {1, 70, 2, 1, 16, true, 0, 0, 0, 0, Documents::one},
    {1, 70, 1, 1, 16, true, 0, 0, 0, 0, Documents::one_per_token},
    {3, 132, 2, 1, 17, true, 0, 0, 2, 0, Documents::several},
    {1, 261, 1, 1, 64, true, 0.25, 0, 0, 0, Documents::several},
    {1, 70, 1, 1, 200, true, 0, 0, 0, 0, Documents::several},
    {2, 200, 1, 1, 32, true, 0.1, 0, 5, 50, Documents::several},
    {1, 256, 1, 1, 64, true, 0, 0, 0, 100},
    {1, 128, 2, 2, 32, true, 0, 0, 0, 0, Documents::several},
};

// Documents that a device's library serves: fewer than fit, exactly as many, and more; all in one sequence and none in
// the next; of one token, of a whole sequence, and up to the end of one; with windows and rows that are parts of wider
// ones. Backward may have smaller pieces, of which some hold too many.
const AttentionShape document_shapes[] = {
    {1, 128, 1, 1, 8, true, 0, 0, 0, 0, Documents::one, 3},
    {2, 128, 2, 1, 8, true, 0, 0, 0, 0, Documents::one_per_token, 128},
    {1, 128, 1, 1, 16, true, 0, 0, 0, 0, Documents::one_per_token, 127},
    {2, 128, 4, 2, 24, true, 0, 0, 8, 0, Documents::several, 6},
    {3, 256, 2, 1, 16, true, 0, 0, 0, 37, Documents::several, 6},
    {4, 128, 1, 1, 32, true, 0, 0, 16, 0, Documents::several, 4},
};

// Compares the gradients with central differences of the float64 forward, for some elements of each input.
void derivative_case(Trial& trial, const AttentionShape& shape) {
  const AttentionGradients operands = run_attention_backward(trial, shape, DType::f32);
  AttentionInputs inputs{operands.q.values(), operands.k.values(), operands.v.values(), operands.d_o.values()};
  const auto loss = [&] {
    const std::vector<double> o = attention_reference(shape, DType::f32, inputs).o;
    double sum = 0;
    for (size_t i = 0; i < o.size(); ++i) sum += o[i] * inputs.d_o[i];
    return sum;
  };
  const auto compare = [&](std::string_view what, std::vector<double>& values, const Operand& gradient) {
    const std::vector<double> actual = gradient.values();
    constexpr double step = 1e-4;
    constexpr double bound = 1e-5;  // the op's own rounding; that of the differences is 1e-8
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
    const AttentionForward forward{shape.batch,        shape.tokens, heads,       kv_heads,    shape.head_size,
                                   shape.used_scale(), mask,         own,         of_heads(q), of_kv_heads(k),
                                   of_kv_heads(v),     o.matrix(),   lse.matrix()};
    trial.run(forward);
    Operand& dq = trial.output(dtype, shape.rows(), heads * shape.head_size);
    Operand& dk = trial.output(dtype, shape.rows(), kv_heads * shape.head_size);
    Operand& dv = trial.output(dtype, shape.rows(), kv_heads * shape.head_size);
    trial.run(AttentionBackward{shape.batch, shape.tokens, heads, kv_heads, shape.head_size, forward.scale,
                                forward.mask, own, forward.q, forward.k, forward.v, o.matrix(), lse.matrix(),
                                of_heads(d_o), dq.matrix(), dk.matrix(), dv.matrix()});
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
  const AttentionShape shape{1, first + second, 1, 1, head_size, true, 0, 0, 0, window};
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
        1,
        length,
        shape.heads,
        shape.kv_heads,
        head_size,
        shape.used_scale(),
        {.pattern = window_pattern(window), .document_starts = packed ? document_starts : nullptr},
        {},
        rows(q),
        rows(k),
        rows(v),
        o.matrix(),
        lse.matrix()};
    trial.run(forward);
    Operand& dq = trial.output(dtype, length, shape.q_cols());
    Operand& dk = trial.output(dtype, length, shape.kv_cols());
    Operand& dv = trial.output(dtype, length, shape.kv_cols());
    trial.run(AttentionBackward{1,
                                length,
                                shape.heads,
                                shape.kv_heads,
                                head_size,
                                shape.used_scale(),
                                forward.mask,
                                {},
                                forward.q,
                                forward.k,
                                forward.v,
                                o.matrix(),
                                lse.matrix(),
                                rows(d_o),
                                dq.matrix(),
                                dk.matrix(),
                                dv.matrix()});
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
    trial.expect_rejected(AttentionForward{1,
                                           4,
                                           1,
                                           1,
                                           8,
                                           1,
                                           mask,
                                           {},
                                           x.matrix(),
                                           x.matrix(),
                                           x.matrix(),
                                           trial.output(DType::f32, 4, 8).matrix(),
                                           trial.output(DType::f32, 1, 4).matrix()},
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
  for (const AttentionShape& shape :
       {AttentionShape{2, 67, 4, 4, 16, true, 0.3},
        AttentionShape{1, 70, 6, 2, 8, true, 0.2, 0, 0, 20, Documents::several}, AttentionShape{2, 9, 3, 3, 5}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      suite.add<AttentionForward>(describe(shape, fmt::format("{} slices of heads", dtype_name(dtype))),
                                  [=](Trial& trial) { head_slices_case(trial, shape, dtype); });
    }
  }
  for (const AttentionShape& shape :
       {AttentionShape{1, 9, 2, 1, 6}, AttentionShape{2, 5, 2, 2, 3, false}, AttentionShape{1, 70, 1, 1, 4, true, 0.2},
        AttentionShape{1, 70, 1, 1, 4, true, 0.2, 0, 0, 5, Documents::several}}) {
    suite.add<AttentionBackward>(describe(shape, "f32 central differences"),
                                 [=](Trial& trial) { derivative_case(trial, shape); });
  }
}

// Attention of GPT-2 124M.
void add_benches(Suite& suite) {
  for (const AttentionShape& shape :
       {AttentionShape{4, 64, 12, 12, 64}, AttentionShape{1, 1024, 12, 12, 64}, AttentionShape{8, 1024, 12, 12, 64},
        AttentionShape{1, 1024, 12, 12, 64, true, 0.1}, AttentionShape{1, 1024, 6, 6, 128},
        AttentionShape{1, 1024, 12, 12, 64, true, 0, 0, 0, 256},
        AttentionShape{1, 1024, 12, 12, 64, true, 0, 0, 0, 0, Documents::one},
        AttentionShape{8, 1024, 12, 12, 64, true, 0, 0, 0, 0, Documents::several},
        AttentionShape{8, 1024, 12, 12, 64, true, 0, 0, 0, 0, Documents::several, 8}}) {
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
