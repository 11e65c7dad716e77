// Rows of sequences that two ranks share: each row has the bits that it has where one rank holds the whole sequences.
#include <fmt/format.h>

#include "reference.h"

namespace gptrain::ops_test::cases_token_rows {
namespace {

constexpr int64_t batch = 3, tokens = 13, cols = 65;

// An early and a late run, the tokens between them, and one run that does not begin at the sequence's start.
constexpr std::array parts{TokenRows{.length = 7, .first_length = 3, .first = 0, .second = 9},
                           TokenRows{.length = 6, .first_length = 3, .first = 3, .second = 6},
                           TokenRows{.length = 5, .first_length = 5, .first = 8}};

// Numbers of rows of the whole sequences.
std::vector<int64_t> rows_of(const TokenRows& part) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < batch * part.length; ++row) rows.push_back(part.sequence(row) * tokens + part.token(row));
  return rows;
}

std::vector<double> pick(const std::vector<double>& whole, const std::vector<int64_t>& rows, int64_t num_cols) {
  std::vector<double> picked;
  for (const int64_t row : rows) {
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(row * num_cols);
    picked.insert(picked.end(), first, first + static_cast<std::ptrdiff_t>(num_cols));
  }
  return picked;
}

// `run` returns the result of an op on the rows of some tokens of each sequence, num_cols values for each row.
template <typename Run>
void check_parts(Trial& trial, int64_t num_cols, const Run& run) {
  const TokenRows all = TokenRows::whole(tokens);
  const std::vector<double> whole = run(all, rows_of(all));
  for (const TokenRows& part : parts) {
    const std::vector<int64_t> rows = rows_of(part);
    trial.expect_true(
        run(part, rows) == pick(whole, rows, num_cols),
        fmt::format("{} rows from token {} have the bits that they have among all", part.length, part.first));
  }
}

// A residual stream and a branch of all tokens.
struct Stream {
  Stream(Trial& trial, const DTypes& dtypes)
      : dropout(trial, 0.4, batch, tokens),
        x(trial.input(dtypes.residual, batch * tokens, cols).values()),
        branch(trial.input(dtypes.compute, batch * tokens, cols).values()) {}

  DropoutCase dropout;
  std::vector<double> x, branch;
};

void check_norm(Trial& trial, const DTypes& dtypes) {
  const Stream stream(trial, dtypes);
  const Operand& gamma = trial.input(DType::f32, 1, cols);
  check_parts(trial, cols, [&](const TokenRows& part, const std::vector<int64_t>& rows) {
    const int64_t count = std::ssize(rows);
    Operand& y = trial.output(dtypes.compute, count, cols);
    NormForward op{};
    op.kind = NormKind::rmsnorm;
    op.eps = 1e-5;
    op.token_rows = part;
    op.x = trial.input(dtypes.residual, count, cols, pick(stream.x, rows, cols)).matrix();
    op.branch = trial.input(dtypes.compute, count, cols, pick(stream.branch, rows, cols)).matrix();
    op.dropout = stream.dropout.dropout;
    op.x_out = trial.output(dtypes.residual, count, cols).matrix();
    op.gamma = gamma.matrix();
    op.y = y.matrix();
    op.rstd = trial.output(DType::f32, 1, count).matrix();
    trial.run(op);
    return y.values();
  });
}

void check_residual(Trial& trial, const DTypes& dtypes) {
  const Stream stream(trial, dtypes);
  check_parts(trial, cols, [&](const TokenRows& part, const std::vector<int64_t>& rows) {
    const int64_t count = std::ssize(rows);
    const Operand& x = trial.input(dtypes.residual, count, cols, pick(stream.x, rows, cols));
    const Operand& branch = trial.input(dtypes.compute, count, cols, pick(stream.branch, rows, cols));
    Operand& x_out = trial.output(dtypes.residual, count, cols);
    trial.run(ResidualAdd{.token_rows = part,
                          .x = x.matrix(),
                          .branch = branch.matrix(),
                          .dropout = stream.dropout.dropout,
                          .x_out = x_out.matrix()});
    return x_out.values();
  });
}

void check_branch(Trial& trial, const DTypes& dtypes) {
  const Stream stream(trial, dtypes);
  check_parts(trial, cols, [&](const TokenRows& part, const std::vector<int64_t>& rows) {
    const int64_t count = std::ssize(rows);
    const Operand& dx = trial.input(dtypes.residual, count, cols, pick(stream.x, rows, cols));
    Operand& d_branch = trial.output(dtypes.compute, count, cols);
    trial.run(BranchBackward{
        .token_rows = part, .dx = dx.matrix(), .dropout = stream.dropout.dropout, .d_branch = d_branch.matrix()});
    return d_branch.values();
  });
}

constexpr int64_t num_tokens = 11, num_positions = tokens + 2;

std::vector<int32_t> random_tokens(Trial& trial) {
  std::vector<int32_t> ids;
  for (int64_t row = 0; row < batch * tokens; ++row)
    ids.push_back(static_cast<int32_t>(trial.random.below(num_tokens)));
  return ids;
}

const int32_t* tokens_of(Trial& trial, const std::vector<int32_t>& ids, const std::vector<int64_t>& rows) {
  std::vector<int32_t> picked;
  for (const int64_t row : rows) picked.push_back(ids[static_cast<size_t>(row)]);
  return Trial::pointer<const int32_t>(trial.input_array(picked));
}

void check_embedding(Trial& trial, const DTypes& dtypes) {
  const std::vector<int32_t> ids = random_tokens(trial);
  const Operand& table = trial.input(dtypes.compute, num_tokens, cols);
  const Operand& positions = trial.input(dtypes.compute, num_positions, cols);
  const DropoutCase dropout(trial, 0.4, batch, tokens);
  check_parts(trial, cols, [&](const TokenRows& part, const std::vector<int64_t>& rows) {
    Operand& x = trial.output(dtypes.residual, std::ssize(rows), cols);
    trial.run(EmbeddingForward{.tokens = tokens_of(trial, ids, rows),
                               .token_rows = part,
                               .token_table = table.matrix(),
                               .position_table = positions.matrix(),
                               .dropout = dropout.dropout,
                               .x = x.matrix()});
    return x.values();
  });
}

// Gradients of the tables from the rows of one part.
struct TableGradients {
  std::vector<double> tokens, positions;
};

// The gradient of a position that has rows equals the whole sequences' to the bit, that of another is zero; so the sum
// over ranks is that of one rank. The gradients of tokens add up to rounding.
void check_embedding_gradient(Trial& trial, const DTypes& dtypes) {
  const std::vector<int32_t> ids = random_tokens(trial);
  const std::vector<double> whole_dx = trial.input(dtypes.residual, batch * tokens, cols).values();
  const DropoutCase dropout(trial, 0.4, batch, tokens);
  const auto gradients = [&](const TokenRows& part) {
    const std::vector<int64_t> rows = rows_of(part);
    const Operand& dx = trial.input(dtypes.residual, std::ssize(rows), cols, pick(whole_dx, rows, cols));
    Operand& d_tokens = trial.output(DType::f32, num_tokens, cols);
    Operand& d_positions = trial.output(DType::f32, num_positions, cols);
    trial.run(EmbeddingBackward{.tokens = tokens_of(trial, ids, rows),
                                .token_rows = part,
                                .dx = dx.matrix(),
                                .dropout = dropout.dropout,
                                .d_token_table = d_tokens.matrix(),
                                .d_position_table = d_positions.matrix(),
                                .accumulate_token = false,
                                .accumulate_position = false});
    return TableGradients{d_tokens.values(), d_positions.values()};
  };
  const TableGradients whole = gradients(TokenRows::whole(tokens));
  const TableGradients early_and_late = gradients(parts[0]), middle = gradients(parts[1]);
  double largest = 0;
  for (size_t i = 0; i < whole.tokens.size(); ++i)
    largest = std::max(largest, std::abs(early_and_late.tokens[i] + middle.tokens[i] - whole.tokens[i]));
  trial.expect_true(largest < 1e-5, "the gradients of tokens add up");
  for (int64_t position = 0; position < num_positions; ++position) {
    const bool in_middle = parts[1].row(position) >= 0;
    for (int64_t i = position * cols; i < (position + 1) * cols; ++i) {
      const auto at = static_cast<size_t>(i);
      trial.expect_true((in_middle ? middle : early_and_late).positions[at] == whole.positions[at] &&
                            (in_middle ? early_and_late : middle).positions[at] == 0,
                        fmt::format("the gradient of position {} is one part's alone", position));
    }
  }
}

constexpr int64_t head_size = 6, q_cols = 2 * head_size, k_cols = head_size;

// `backward` rotates gradients back.
void check_rotation(Trial& trial, DType dtype, bool backward) {
  const std::vector<double> q = trial.input(dtype, batch * tokens, q_cols).values();
  const std::vector<double> k = trial.input(dtype, batch * tokens, k_cols).values();
  check_parts(trial, q_cols + k_cols, [&](const TokenRows& part, const std::vector<int64_t>& rows) {
    const int64_t count = std::ssize(rows);
    Operand& turned_q = trial.in_out(dtype, count, q_cols);
    Operand& turned_k = trial.in_out(dtype, count, k_cols);
    turned_q.set_values(pick(q, rows, q_cols));
    turned_k.set_values(pick(k, rows, k_cols));
    const auto run = [&](auto op) {
      op.token_rows = part;
      op.head_size = head_size;
      op.rotary = true;
      if constexpr (std::is_same_v<decltype(op), QueryKeyForward>) {
        op.q = op.q_out = turned_q.matrix();
        op.k = op.k_out = turned_k.matrix();
      } else {
        op.dq = turned_q.matrix();
        op.dk = turned_k.matrix();
      }
      trial.run(op);
    };
    backward ? run(QueryKeyBackward{}) : run(QueryKeyForward{});
    std::vector<double> both;
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t col = 0; col < q_cols; ++col) both.push_back(turned_q.at(row, col));
      for (int64_t col = 0; col < k_cols; ++col) both.push_back(turned_k.at(row, col));
    }
    return both;
  });
}

void check_rejections(Trial& trial) {
  const Operand& x = trial.input(DType::f32, 6, 4);
  Operand& y = trial.output(DType::f32, 6, 4);
  QueryKeyForward op{};
  op.head_size = 4;
  op.q = x.matrix();
  op.k = x.matrix();
  op.q_out = y.matrix();
  op.k_out = y.matrix();
  const auto reject = [&](const TokenRows& rows, std::string_view why) {
    op.token_rows = rows;
    trial.expect_rejected(op, why);
  };
  reject(TokenRows::whole(4), "rows that are not whole sequences");
  reject({.length = 3, .first_length = 4}, "a first run longer than the rows of a sequence");
  reject({.length = 3, .first_length = 2, .first = 4, .second = 5}, "runs that overlap");
  reject({.length = 3, .first_length = 3, .first = -1}, "a run that begins before its sequence");
}

void add_cases(Suite& suite) {
  for (const DTypes& dtypes : dtype_pairs) {
    const std::string name = "parts of sequences " + name_of(dtypes);
    suite.add<NormForward>(name, [=](Trial& t) { check_norm(t, dtypes); });
    suite.add<ResidualAdd>(name, [=](Trial& t) { check_residual(t, dtypes); });
    suite.add<BranchBackward>(name, [=](Trial& t) { check_branch(t, dtypes); });
    suite.add<EmbeddingForward>(name, [=](Trial& t) { check_embedding(t, dtypes); });
    suite.add<EmbeddingBackward>(name, [=](Trial& t) { check_embedding_gradient(t, dtypes); });
  }
  for (const DType dtype : compute_dtypes) {
    const std::string name = fmt::format("parts of sequences {}", dtype_name(dtype));
    suite.add<QueryKeyForward>(name, [=](Trial& t) { check_rotation(t, dtype, false); });
    suite.add<QueryKeyBackward>(name, [=](Trial& t) { check_rotation(t, dtype, true); });
  }
  suite.add<QueryKeyForward>("parts that are none", check_rejections);
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_token_rows
