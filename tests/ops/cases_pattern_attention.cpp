// Cases of attention in patterns of several runs of keys.
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <set>
#include <stdexcept>

#include "attention_reference.h"
#include "harness.h"
#include "ops/key_tiles.h"
#include "reference.h"

namespace gptrain::ops_test::cases_pattern_attention {
namespace {

AttentionPattern pattern_of(std::string_view word) {
  const auto pattern = parse_attention_pattern(word);
  if (!pattern.has_value()) throw std::logic_error(fmt::format("no pattern: {}", word));
  return *pattern;
}

struct PatternShape {
  std::string_view word;
  AttentionShape shape;

  AttentionShape whole() const {
    AttentionShape result = shape;
    result.pattern = pattern_of(word);
    return result;
  }
};

// Every kind, with and without global tokens, sets of columns, documents, dropout and shared keys; widths that divide
// neither tiles nor sequences, classes of one tile and of several, and of two tokens.
const PatternShape shapes[] = {
    {"strided:16", {.batch = 1, .tokens = 150, .heads = 2, .kv_heads = 1, .head_size = 16, .dropout = 0.2}},
    {"strided:24",
     {.batch = 2,
      .tokens = 131,
      .heads = 2,
      .kv_heads = 2,
      .head_size = 33,
      .gap = 3,
      .documents = Documents::several}},
    {"strided:90+global:20", {.batch = 1, .tokens = 150, .heads = 1, .kv_heads = 1, .head_size = 64}},
    {"strided:2", {.batch = 1, .tokens = 300, .heads = 1, .kv_heads = 1, .head_size = 200}},
    {"columns:5",
     {.batch = 1,
      .tokens = 137,
      .heads = 2,
      .kv_heads = 1,
      .head_size = 24,
      .dropout = 0.1,
      .documents = Documents::several}},
    {"columns:70+global:3", {.batch = 1, .tokens = 150, .heads = 1, .kv_heads = 1, .head_size = 8, .dropout = 0.2}},
    {"columns:2", {.batch = 1, .tokens = 260, .heads = 2, .kv_heads = 2, .head_size = 64}},
    {"fixed:32,5", {.batch = 2, .tokens = 140, .heads = 2, .kv_heads = 2, .head_size = 16, .dropout = 0.3, .gap = 1}},
    {"fixed:48,8/2",
     {.batch = 1, .tokens = 200, .heads = 4, .kv_heads = 2, .head_size = 20, .documents = Documents::several}},
    {"fixed:20,3/3+global:70", {.batch = 1, .tokens = 150, .heads = 6, .kv_heads = 2, .head_size = 40, .dropout = 0.1}},
    {"fixed:64,16", {.batch = 1, .tokens = 330, .heads = 1, .kv_heads = 1, .head_size = 128}},
    {"band:20+global:5",
     {.batch = 1,
      .tokens = 150,
      .heads = 2,
      .kv_heads = 1,
      .head_size = 80,
      .dropout = 0.2,
      .documents = Documents::several}},
    {"band:70+global:66", {.batch = 1, .tokens = 200, .heads = 1, .kv_heads = 1, .head_size = 16}},
    {"strided:24",
     {.batch = 1,
      .tokens = 131,
      .heads = 2,
      .kv_heads = 1,
      .head_size = 33,
      .dropout = 0.2,
      .scale = 0.5,
      .softcap = 2,
      .documents = Documents::several}},
    {"fixed:48,8/2", {.batch = 1, .tokens = 150, .heads = 4, .kv_heads = 2, .head_size = 20, .scale = 1, .softcap = 3}},
    {"strided:90",
     {.batch = 2,
      .tokens = 150,
      .heads = 2,
      .kv_heads = 1,
      .head_size = 16,
      .dropout = 0.2,
      .sinks = true,
      .largest = true}},
    {"columns:70", {.batch = 1, .tokens = 150, .heads = 2, .kv_heads = 2, .head_size = 40, .sinks = true}},
    // Several blocks of picked queries: of classes of two tiles, and of one, with empty places.
    {"columns:4",
     {.batch = 1, .tokens = 510, .heads = 3, .kv_heads = 3, .head_size = 32, .documents = Documents::several}},
    {"columns:8",
     {.batch = 2,
      .tokens = 509,
      .heads = 6,
      .kv_heads = 1,
      .head_size = 8,
      .dropout = 0.1,
      .sinks = true,
      .largest = true}},
    {"columns:8+global:70", {.batch = 1, .tokens = 509, .heads = 3, .kv_heads = 3, .head_size = 16}},
    {"strided:8", {.batch = 1, .tokens = 509, .heads = 2, .kv_heads = 1, .head_size = 16, .dropout = 0.1}},
};

// Operands of both ops. Each run has outputs of its own.
struct Operands {
  Matrix q, k, v, d_o;
};
using Outputs = std::array<const Operand*, 5>;  // o, lse, dq, dk, dv
constexpr std::array<std::string_view, 5> output_names{"o", "lse", "dq", "dk", "dv"};

// Runs forward on `operands`, and backward on `gradients` with the o and lse of `forward`; nullptr: those of this run.
Outputs run(Trial& trial, const AttentionShape& shape, DType dtype, const Operands& operands, const Operands& gradients,
            const Outputs* forward = nullptr) {
  Operand& o = trial.output(dtype, shape.rows(), shape.q_cols());
  Operand& lse = trial.output(DType::f32, shape.batch * shape.heads, shape.tokens);
  auto op = attention_op<AttentionForward>(shape, mask_of(trial, shape), dropout_of(trial, shape));
  op.q = operands.q;
  op.k = operands.k;
  op.v = operands.v;
  op.o = o.matrix();
  op.lse = lse.matrix();
  trial.run(op);
  Operand& dq = trial.output(dtype, shape.rows(), shape.q_cols());
  Operand& dk = trial.output(dtype, shape.rows(), shape.kv_cols());
  Operand& dv = trial.output(dtype, shape.rows(), shape.kv_cols());
  auto backward = attention_op<AttentionBackward>(shape, op.mask, op.dropout);
  backward.q = gradients.q;
  backward.k = gradients.k;
  backward.v = gradients.v;
  backward.o = (forward != nullptr ? *(*forward)[0] : o).matrix();
  backward.lse = (forward != nullptr ? *(*forward)[1] : lse).matrix();
  backward.d_o = gradients.d_o;
  backward.dq = dq.matrix();
  backward.dk = dk.matrix();
  backward.dv = dv.matrix();
  trial.run(backward);
  return {&o, &lse, &dq, &dk, &dv};
}

bool equal_row(const Operand& a, const Operand& b, int64_t row) {
  for (int64_t col = 0; col < a.matrix().cols; ++col) {
    if (a.at(row, col) != b.at(row, col)) return false;
  }
  return true;
}

// A band of the whole sequence has the bytes of dense attention.
void dense_bytes_case(Trial& trial, DType dtype) {
  AttentionShape shape{.batch = 1, .tokens = 150, .heads = 2, .kv_heads = 1, .head_size = 24, .dropout = 0.1};
  const auto input = [&](int64_t cols) { return trial.input(dtype, shape.rows(), cols).matrix(); };
  const Operands in{.q = input(shape.q_cols()),
                    .k = input(shape.kv_cols()),
                    .v = input(shape.kv_cols()),
                    .d_o = input(shape.q_cols())};
  const Outputs dense = run(trial, shape, dtype, in, in);
  for (const std::string_view word : {"band:150", "band:4000"}) {
    shape.pattern = pattern_of(word);
    const Outputs band = run(trial, shape, dtype, in, in);
    for (size_t i = 0; i < band.size(); ++i)
      trial.expect_true(band[i]->values() == dense[i]->values(),
                        fmt::format("{} of {}: the bytes of dense", output_names[i], word));
  }
}

// Returns the tokens of the tiles that a query's tiles see, in all passes, or, with `back`, of the tiles that see a
// key's tiles.
std::set<int64_t> tokens_in_reach(const AttentionShape& shape, int token, bool back) {
  const auto all = KeyTiles<true>::of({.pattern = shape.pattern}, shape.tokens, 0, nullptr);
  std::set<int64_t> reached;
  for (int i = 0; i < all.num_passes(); ++i) {
    const auto tiles = all.pass(i);
    for (int query_tile = 0; query_tile < tiles.num_query_tiles(); ++query_tile) {
      std::set<int64_t> queries, keys;
      for (int place = query_tile * attention_tile; place < (query_tile + 1) * attention_tile; ++place)
        if (place < tiles.num_queries()) queries.insert(tiles.query_token(place));
      const KeyRuns runs = tiles.runs(query_tile);
      for (int n = 0; n < runs.size(); ++n) {
        std::set<int64_t> of_tile;
        for (int place = runs[n].first(); place < runs[n].first() + attention_tile; ++place)
          if (place < tiles.num_keys(runs[n].picked)) of_tile.insert(tiles.key_token(place, runs[n].picked));
        if (back && of_tile.contains(token)) reached.insert(queries.begin(), queries.end());
        keys.insert(of_tile.begin(), of_tile.end());
      }
      if (!back && queries.contains(token)) reached.insert(keys.begin(), keys.end());
    }
  }
  return reached;
}

// Checks that tiles outside of the pattern are not read: with NaN in the keys and values that no tile of a query sees,
// its results have the bits of sound operands; so have a key's with NaN in the queries that do not see its tiles.
void poison_case(Trial& trial, std::string_view word, int64_t tokens, DType dtype) {
  AttentionShape shape{.batch = 1, .tokens = tokens, .heads = 1, .kv_heads = 1, .head_size = 24};
  shape.pattern = pattern_of(word);
  const auto sound_input = [&] { return &trial.input(dtype, tokens, shape.head_size); };
  const std::array<const Operand*, 4> sound{sound_input(), sound_input(), sound_input(), sound_input()};
  const auto poisoned = [&](const Operand& operand, const std::set<int64_t>& kept) {
    std::vector<double> values = operand.values();
    for (int64_t row = 0; row < tokens; ++row)
      for (int64_t col = 0; col < shape.head_size && !kept.contains(row); ++col)
        values[static_cast<size_t>(row * shape.head_size + col)] = std::numeric_limits<double>::quiet_NaN();
    return trial.input(dtype, tokens, shape.head_size, values).matrix();
  };
  const Operands in{
      .q = sound[0]->matrix(), .k = sound[1]->matrix(), .v = sound[2]->matrix(), .d_o = sound[3]->matrix()};
  const Outputs expected = run(trial, shape, dtype, in, in);
  for (const int token : {3, static_cast<int>(tokens) / 2, static_cast<int>(tokens) - 2}) {
    const auto keys = tokens_in_reach(shape, token, false), queries = tokens_in_reach(shape, token, true);
    trial.expect_true(std::ssize(keys) + std::ssize(queries) < 2 * tokens, "something is out of reach");
    const Operands of_query{.q = in.q, .k = poisoned(*sound[1], keys), .v = poisoned(*sound[2], keys), .d_o = in.d_o};
    const Outputs by_query = run(trial, shape, dtype, of_query, of_query, &expected);
    trial.expect_true(equal_row(*by_query[0], *expected[0], token), fmt::format("o of query {}", token));
    trial.expect_true(by_query[1]->at(0, token) == expected[1]->at(0, token), fmt::format("lse of query {}", token));
    trial.expect_true(equal_row(*by_query[2], *expected[2], token), fmt::format("dq of query {}", token));
    const Operands of_key{.q = poisoned(*sound[0], queries), .k = in.k, .v = in.v, .d_o = poisoned(*sound[3], queries)};
    const Outputs by_key = run(trial, shape, dtype, in, of_key, &expected);
    trial.expect_true(equal_row(*by_key[3], *expected[3], token), fmt::format("dk of key {}", token));
    trial.expect_true(equal_row(*by_key[4], *expected[4], token), fmt::format("dv of key {}", token));
  }
}

// RETURNS whether some query of the first sequence sees two keys, so that gradients of scores are not all zero.
bool has_pairs(const AttentionShape& shape) {
  const std::vector<int32_t> starts = document_starts(shape);
  for (int64_t query = 1; query < shape.tokens; ++query) {
    const int64_t start = shape.documents == Documents::unmasked ? 0 : starts[static_cast<size_t>(query)];
    for (int64_t key = start; key < query; ++key)
      if (shape.pattern.sees(0, query, key)) return true;
  }
  return false;
}

// RETURNS any pattern of any kind, on sizes around those of tiles.
AttentionShape random_shape(Random& random) {
  constexpr std::array<int64_t, 8> edges{63, 64, 65, 127, 128, 129, 192, 193};
  const auto size = [&](int64_t most) {
    const int64_t edge = edges[static_cast<size_t>(random.below(std::ssize(edges)))];
    return random.below(4) == 0 && edge <= most ? edge : 1 + random.below(most);
  };
  const int64_t kv_heads = 1 + random.below(2), heads = kv_heads * (1 + random.below(3));
  AttentionShape shape{.batch = 1 + random.below(2),
                       .tokens = size(260),
                       .heads = heads,
                       .kv_heads = kv_heads,
                       .head_size = 1 + random.below(random.below(4) == 0 ? 130 : 40)};
  shape.dropout = random.below(3) == 0 ? 0.25 : 0;
  shape.scale = random.below(4) == 0 ? 0.7 : 0;
  shape.softcap = random.below(4) == 0 ? 2 : 0;
  shape.gap = random.below(4);
  shape.documents = std::array{Documents::unmasked, Documents::one, Documents::several,
                               Documents::several}[static_cast<size_t>(random.below(4))];
  shape.sinks = random.below(4) == 0;
  shape.largest = shape.softcap == 0 && random.below(4) == 0;
  AttentionPattern& pattern = shape.pattern;
  pattern.kind = static_cast<AttentionKind>(1 + random.below(4));
  pattern.width = size(shape.tokens + 30);
  pattern.global = random.below(2) == 0 ? size(random.below(2) == 0 ? 20 : shape.tokens + 5) : 0;
  if (pattern.kind == AttentionKind::fixed) {
    pattern.columns = 1 + random.below(pattern.width);
    const int64_t sets = 1 + random.below(heads / kv_heads);
    if (heads / kv_heads % sets == 0 && pattern.columns * sets <= pattern.width) pattern.column_sets = sets;
  }
  return shape;
}

void random_case(Trial& trial, DType dtype, void (*check)(Trial&, const AttentionShape&, DType)) {
  AttentionShape shape = random_shape(trial.random);
  while (!has_pairs(shape)) shape = random_shape(trial.random);
  check(trial, shape, dtype);
  if (!trial.failures().empty()) trial.fail("the shape was " + describe(shape, dtype_name(dtype)));
}

void rejected_case(Trial& trial) {
  const Operand& x = trial.input(DType::f32, 4, 8);
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
  reject({.causal = false, .pattern = pattern_of("columns:2")}, "a pattern without a causal mask");
  reject({.pattern = pattern_of("fixed:4,1/2")}, "sets of columns that do not divide the heads");
  reject({.pattern = {.kind = AttentionKind::fixed, .width = 4, .columns = 5}}, "more columns than a block has");
}

void add_cases(Suite& suite) {
  for (const PatternShape& at : shapes) {
    const AttentionShape shape = at.whole();
    for (const DType dtype : compute_dtypes) {
      if (is_left_out(dtype, &at - shapes)) continue;
      const std::string description = describe(shape, dtype_name(dtype));
      suite.add<AttentionForward>(description, [=](Trial& trial) { attention_forward_case(trial, shape, dtype); });
      suite.add<AttentionBackward>(description, [=](Trial& trial) { attention_backward_case(trial, shape, dtype); });
    }
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    suite.add<AttentionBackward>(fmt::format("a band of the whole sequence {}", dtype_name(dtype)),
                                 [=](Trial& trial) { dense_bytes_case(trial, dtype); });
  }
  for (const auto& [word, tokens] : {std::pair{"strided:70", 330},
                                     {"columns:3", 400},
                                     {"columns:3+global:70", 400},
                                     {"fixed:64,4", 330},
                                     {"band:70+global:3", 330}}) {
    for (const DType dtype : {DType::f32, DType::bf16})
      suite.add<AttentionBackward>(fmt::format("NaN out of reach of {} T={} {}", word, tokens, dtype_name(dtype)),
                                   [name = std::string_view(word), length = tokens, dtype](Trial& trial) {
                                     poison_case(trial, name, length, dtype);
                                   });
  }
  for (int i = 0; i < 3; ++i) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::string description = fmt::format("random pattern {} {}", i, dtype_name(dtype));
      suite.add<AttentionForward>(description,
                                  [dtype](Trial& trial) { random_case(trial, dtype, attention_forward_case); });
      suite.add<AttentionBackward>(description,
                                   [dtype](Trial& trial) { random_case(trial, dtype, attention_backward_case); });
    }
  }
  suite.add<AttentionForward>("patterns that are refused", rejected_case);
}

// One head, dense and in each pattern.
void add_benches(Suite& suite) {
  for (const auto& [word, tokens] : {std::pair{"dense", 4096},
                                     {"band:256", 4096},
                                     {"dense", 16384},
                                     {"band:256", 16384},
                                     {"fixed:128,16", 16384},
                                     {"columns:128", 16384},
                                     {"strided:128", 16384},
                                     {"band:256+global:64", 16384}}) {
    AttentionShape shape{.batch = 1, .tokens = tokens, .heads = 2, .kv_heads = 2, .head_size = 64};
    shape.pattern = pattern_of(word);
    add_attention_benches(suite, shape, DType::bf16);
  }
}

const Registration cases(add_cases);
const Registration benches(add_benches);

}  // namespace
}  // namespace gptrain::ops_test::cases_pattern_attention
