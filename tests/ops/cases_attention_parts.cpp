// Cases of attention over parts of the keys, and of their sum: compared with attention over all of them, in float64.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <vector>

#include "attention_reference.h"
#include "harness.h"

namespace gptrain::ops_test::cases_attention_parts {
namespace {

// A run of tokens.
struct Run {
  int64_t first, length;
};

// A sequence, and the ends of the runs of queries and of keys that it is cut into.
struct Cut {
  AttentionShape shape;
  std::vector<int64_t> query_ends, key_ends;
};

std::vector<Run> runs(const std::vector<int64_t>& ends) {
  std::vector<Run> result;
  int64_t first = 0;
  for (const int64_t end : ends) {
    result.push_back({first, end - first});
    first = end;
  }
  return result;
}

// Operands of a sequence.
struct Inputs {
  Inputs(Trial& trial, const AttentionShape& shape, DType dtype)
      : q(trial.input(dtype, shape.rows(), shape.q_cols(), 1, shape.gap)),
        k(trial.input(dtype, shape.rows(), shape.kv_cols(), 1, shape.gap)),
        v(trial.input(dtype, shape.rows(), shape.kv_cols(), 1, shape.gap)),
        d_o(trial.input(dtype, shape.rows(), shape.q_cols())),
        mask(mask_of(trial, shape)),
        dropout(dropout_of(trial, shape)),
        sinks(sinks_of(trial, shape)),
        reference(attention_reference(shape, dtype,
                                      {.q = q.values(),
                                       .k = k.values(),
                                       .v = v.values(),
                                       .d_o = d_o.values(),
                                       .sinks = shape.sinks ? sinks->values() : std::vector<double>{}})) {}

  const Operand &q, &k, &v, &d_o;
  AttentionMask mask;
  Dropout dropout;
  const Operand* sinks;  // null without
  AttentionResults reference;
};

template <typename Op>
Op part_op(const AttentionShape& shape, const Inputs& in, const Run& queries, const Run& keys) {
  Op op{attention_op<decltype(Op::of)>(shape, in.mask, in.dropout), {queries.first, keys.first, keys.length}};
  op.of.sequence_length = queries.length;
  op.of.q = in.q.matrix().row_range(queries.first, queries.length);
  op.of.k = in.k.matrix().row_range(keys.first, keys.length);
  op.of.v = in.v.matrix().row_range(keys.first, keys.length);
  return op;
}

// Rounding of `keys` products in the dtype, for numbers of the size of `values`.
double bound_of(DType dtype, const std::vector<double>& values, double in_f32 = 0x1p-18) {
  return (dtype == DType::f32 ? in_f32 : 0x1p-6) * (1 + largest(values));
}

void forward_case(Trial& trial, const Cut& cut, DType dtype) {
  const AttentionShape& shape = cut.shape;
  const Inputs in(trial, shape, dtype);
  Operand& o = trial.output(DType::f32, shape.tokens, shape.q_cols());
  Operand& lse = trial.output(DType::f32, shape.heads, shape.tokens);
  Operand& part_o = trial.output(DType::f32, shape.tokens, shape.q_cols());
  Operand& part_lse = trial.output(DType::f32, shape.heads, shape.tokens);
  bool some_see_nothing = false;
  for (const Run& queries : runs(cut.query_ends)) {
    const Matrix o_rows = o.matrix().row_range(queries.first, queries.length);
    const Matrix lse_rows = lse.matrix().column_range(queries.first, queries.length);
    bool is_first = true;
    // Begins with the keys that are the queries' own, as every query sees its own key.
    std::vector<Run> of_keys = runs(cut.key_ends);
    std::stable_partition(of_keys.begin(), of_keys.end(), [&](const Run& keys) {
      return keys.first <= queries.first && queries.first + queries.length <= keys.first + keys.length;
    });
    for (const Run& keys : of_keys) {
      auto op = part_op<AttentionPartForward>(shape, in, queries, keys);
      op.of.o = is_first ? o_rows : part_o.matrix().row_range(0, queries.length);
      op.of.lse = is_first ? lse_rows : part_lse.matrix().column_range(0, queries.length);
      if (shape.sinks && is_first) op.of.sinks = in.sinks->matrix();
      trial.run(op);
      if (!is_first) {
        some_see_nothing |= part_lse.at(0, 0) == -std::numeric_limits<double>::infinity();
        trial.run(MergeAttention{.part_o = op.of.o, .part_lse = op.of.lse, .o = o_rows, .lse = lse_rows});
      }
      is_first = false;
    }
  }
  trial.expect_true(some_see_nothing || !shape.causal, "some queries see no key of a part");
  trial.expect_near("o", o, in.reference.o, bound_of(dtype, in.reference.o));
  trial.expect_near("lse", lse, in.reference.lse, bound_of(DType::f32, in.reference.lse));
}

void backward_case(Trial& trial, const Cut& cut, DType dtype) {
  const AttentionShape& shape = cut.shape;
  const Inputs in(trial, shape, dtype);
  const Operand& o = trial.input(dtype, shape.tokens, shape.q_cols(), in.reference.o);
  const Operand& lse = trial.input(DType::f32, shape.heads, shape.tokens, in.reference.lse);
  Operand& dq = trial.output(DType::f32, shape.tokens, shape.q_cols());
  Operand& dk = trial.output(DType::f32, shape.tokens, shape.kv_cols());
  Operand& dv = trial.output(DType::f32, shape.tokens, shape.kv_cols());
  Operand* const d_sinks = shape.sinks ? &trial.output(DType::f64, 1, shape.heads) : nullptr;
  std::vector<double> d_sinks_sum(in.reference.d_sinks.size());
  std::vector<double> dq_sum(in.reference.dq.size()), dk_sum(in.reference.dk.size()), dv_sum(dk_sum);
  const auto add = [](std::vector<double>& sum, const Operand& part, const Run& rows, int64_t cols) {
    for (int64_t row = 0; row < rows.length; ++row)
      for (int64_t col = 0; col < cols; ++col)
        sum[static_cast<size_t>((rows.first + row) * cols + col)] += part.at(row, col);
  };
  for (const Run& queries : runs(cut.query_ends)) {
    for (const Run& keys : runs(cut.key_ends)) {
      auto op = part_op<AttentionPartBackward>(shape, in, queries, keys);
      op.of.o = o.matrix().row_range(queries.first, queries.length);
      op.of.lse = lse.matrix().column_range(queries.first, queries.length);
      op.of.d_o = in.d_o.matrix().row_range(queries.first, queries.length);
      op.of.dq = dq.matrix().row_range(0, queries.length);
      op.of.dk = dk.matrix().row_range(0, keys.length);
      op.of.dv = dv.matrix().row_range(0, keys.length);
      const bool with_sinks = shape.sinks && keys.first == 0;  // for one part of the queries
      if (with_sinks) op.of.sinks = in.sinks->matrix();
      if (with_sinks) op.of.d_sinks = d_sinks->matrix();
      trial.run(op);
      for (int64_t head = 0; with_sinks && head < shape.heads; ++head)
        d_sinks_sum[static_cast<size_t>(head)] += d_sinks->at(0, head);
      add(dq_sum, dq, queries, shape.q_cols());
      add(dk_sum, dk, keys, shape.kv_cols());
      add(dv_sum, dv, keys, shape.kv_cols());
    }
  }
  const auto compare = [&](std::string_view what, const std::vector<double>& sum, const std::vector<double>& expected) {
    const double bound = bound_of(dtype, expected, 0x1p-17);
    for (size_t i = 0; i < sum.size(); ++i) {
      if (std::abs(sum[i] - expected[i]) <= bound) continue;
      return trial.fail(
          fmt::format("{}: element {} is {}, expected {} within {}", what, i, sum[i], expected[i], bound));
    }
  };
  compare("dq", dq_sum, in.reference.dq);
  compare("dk", dk_sum, in.reference.dk);
  compare("dv", dv_sum, in.reference.dv);
  if (shape.sinks) compare("d_sinks", d_sinks_sum, in.reference.d_sinks);
}

// Benches the later half of a sequence's queries over the earlier half of its keys, and the sum with another part.
void add_benches(Suite& suite, const AttentionShape& shape, DType dtype) {
  const std::string text = describe(shape, fmt::format("{} halves", dtype_name(dtype)));
  const int64_t half = shape.tokens / 2;
  const auto part = [=]<typename Op>(Trial& trial) {
    Op op{attention_op<decltype(Op::of)>(shape, mask_of(trial, shape), {}),
          {.first_query = half, .first_key = 0, .keys = half}};
    op.of.sequence_length = half;
    op.of.q = trial.input(dtype, half, shape.q_cols()).matrix();
    op.of.k = trial.input(dtype, half, shape.kv_cols()).matrix();
    op.of.v = trial.input(dtype, half, shape.kv_cols()).matrix();
    return op;
  };
  suite.add_bench<AttentionPartForward>(text, [=](Trial& trial) {
    auto op = part.template operator()<AttentionPartForward>(trial);
    op.of.o = trial.output(DType::f32, half, shape.q_cols()).matrix();
    op.of.lse = trial.output(DType::f32, shape.heads, half).matrix();
    trial.time(op);
  });
  suite.add_bench<AttentionPartBackward>(text, [=](Trial& trial) {
    auto op = part.template operator()<AttentionPartBackward>(trial);
    op.of.o = trial.input(dtype, half, shape.q_cols()).matrix();
    op.of.lse = trial.input(DType::f32, shape.heads, half).matrix();
    op.of.d_o = trial.input(dtype, half, shape.q_cols()).matrix();
    op.of.dq = trial.output(DType::f32, half, shape.q_cols()).matrix();
    op.of.dk = trial.output(DType::f32, half, shape.kv_cols()).matrix();
    op.of.dv = trial.output(DType::f32, half, shape.kv_cols()).matrix();
    trial.time(op);
  });
  suite.add_bench<MergeAttention>(text, [=](Trial& trial) {
    trial.time(MergeAttention{.part_o = trial.input(DType::f32, half, shape.q_cols()).matrix(),
                              .part_lse = trial.input(DType::f32, shape.heads, half).matrix(),
                              .o = trial.in_out(DType::f32, half, shape.q_cols()).matrix(),
                              .lse = trial.in_out(DType::f32, shape.heads, half).matrix()});
  });
}

void add_cases(Suite& suite) {
  const std::vector<Cut> cuts = {
      {{.batch = 1, .tokens = 150, .heads = 4, .kv_heads = 2, .head_size = 20, .dropout = 0.3, .gap = 3},
       {35, 75, 150},
       {75, 150}},
      {{.batch = 1, .tokens = 210, .heads = 2, .kv_heads = 2, .head_size = 33, .softcap = 1, .window = 40},
       {70, 140, 210},
       {70, 140, 210}},
      {{.batch = 1,
        .tokens = 261,
        .heads = 3,
        .kv_heads = 1,
        .head_size = 16,
        .dropout = 0.2,
        .documents = Documents::several},
       {87, 174, 261},
       {87, 174, 261}},
      {{.batch = 1, .tokens = 130, .heads = 4, .kv_heads = 2, .head_size = 24, .window = 50, .sinks = true},
       {65, 130},
       {65, 130}},
      {{.batch = 1, .tokens = 90, .heads = 2, .kv_heads = 1, .head_size = 64, .causal = false}, {30, 90}, {90}},
      {{.batch = 1, .tokens = 6, .heads = 2, .kv_heads = 2, .head_size = 8, .dropout = 0.5},
       {1, 2, 3, 4, 5, 6},
       {2, 4, 6}}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Cut& cut : cuts) {
      const std::string text = describe(
          cut.shape, fmt::format("{} in {} x {} parts", dtype_name(dtype), cut.query_ends.size(), cut.key_ends.size()));
      suite.add<AttentionPartForward>(text, [=](Trial& trial) { forward_case(trial, cut, dtype); });
      suite.add<AttentionPartBackward>(text, [=](Trial& trial) { backward_case(trial, cut, dtype); });
    }
  }
  for (const DType dtype : {DType::f32, DType::bf16})
    add_benches(suite, {.batch = 1, .tokens = 2048, .heads = 12, .kv_heads = 12, .head_size = 64}, dtype);
  suite.add<MergeAttention>("parts that see nothing", [](Trial& trial) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    Operand& o = trial.in_out(DType::f32, 3, 10);
    Operand& lse = trial.in_out(DType::f32, 2, 3);
    const std::vector<double> before = o.values(), lse_before = lse.values();
    const Operand& part_o = trial.input(DType::f32, 3, 10, std::vector<double>(30, std::nan("")));
    const Operand& part_lse = trial.input(DType::f32, 2, 3, std::vector<double>(6, -infinity));
    trial.run(
        MergeAttention{.part_o = part_o.matrix(), .part_lse = part_lse.matrix(), .o = o.matrix(), .lse = lse.matrix()});
    trial.expect_equal("o", o, before);
    trial.expect_equal("lse", lse, lse_before);
  });
  suite.add<MergeAttention>("the first keys that queries see", [](Trial& trial) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    Operand& o = trial.in_out(DType::f32, 3, 10, 0);
    Operand& lse = trial.in_out(DType::f32, 2, 3);
    for (int64_t i = 0; i < 6; ++i) lse.set(i / 3, i % 3, -infinity);
    const Operand& part_o = trial.input(DType::f32, 3, 10);
    const Operand& part_lse = trial.input(DType::f32, 2, 3);
    trial.run(
        MergeAttention{.part_o = part_o.matrix(), .part_lse = part_lse.matrix(), .o = o.matrix(), .lse = lse.matrix()});
    trial.expect_equal("o", o, part_o.values());
    trial.expect_equal("lse", lse, part_lse.values());
  });
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_attention_parts
