// The table that describes an op's documents to a library, compared with one made on the host token by token.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "catch.h"
#include "kernels/documents.h"

using namespace gptrain;

namespace {

// Operands with different strides, of which only the strides are read.
AttentionBackward op_of(int64_t batch, int64_t tokens, int64_t max_documents, const std::vector<int32_t>& starts) {
  AttentionBackward op{};
  op.batch = batch;
  op.sequence_length = tokens;
  op.num_heads = 6;
  op.num_kv_heads = 2;
  op.head_size = 8;
  op.mask.document_starts = starts.data();
  op.mask.max_documents = max_documents;
  int64_t stride = 48;
  for (Matrix* matrix : {&op.q, &op.k, &op.v, &op.o, &op.d_o, &op.dq, &op.dk, &op.dv})
    *matrix = Matrix(nullptr, DType::bf16, batch * tokens, 16, stride += 8);
  op.lse = Matrix(nullptr, DType::f32, batch * 6, tokens);
  return op;
}

// Returns document starts: at each token with the given probability, and at each sequence.
std::vector<int32_t> random_starts(int64_t batch, int64_t tokens, double probability, uint32_t seed) {
  std::vector<int32_t> starts;
  for (int64_t row = 0; row < batch * tokens; ++row) {
    const bool begins = philox({seed, 3}, {static_cast<uint32_t>(row), 0, 0, 0})[0] < probability * 0x1p32;
    const auto token = static_cast<int32_t>(row % tokens);
    starts.push_back(token == 0 || begins ? token : starts.back());
  }
  return starts;
}

// Returns the first row and length of each document of a piece.
std::vector<std::pair<int64_t, int64_t>> documents_of(const std::vector<int32_t>& starts, int64_t tokens,
                                                      int64_t first_row, int64_t rows) {
  std::vector<std::pair<int64_t, int64_t>> documents;
  for (int64_t row = 0; row < rows; ++row) {
    if (starts[static_cast<size_t>(first_row + row)] == row % tokens) documents.emplace_back(row, 0);
    ++documents.back().second;
  }
  return documents;
}

void expect_right_table(int64_t batch, int64_t sequences, int64_t tokens, int64_t capacity, double probability) {
  INFO("B=" << batch << " T=" << tokens << ", pieces of " << sequences << ", room for " << capacity
            << ", documents begin by " << probability);
  const std::vector<int32_t> starts =
      random_starts(batch, tokens, probability, static_cast<uint32_t>(tokens + capacity));
  const AttentionBackward op = op_of(batch, tokens, capacity, starts);
  std::vector<int64_t> memory(
      static_cast<size_t>(document_overflow_bytes(batch) + batch * document_piece_bytes(capacity)) / sizeof(int64_t),
      -1);
  const DocumentTable table(reinterpret_cast<std::byte*>(memory.data()), batch, sequences, capacity);
  list_documents(table, op, {});
  const std::vector<Matrix> rows_of = {op.q, op.k, op.v, op.o, {}, op.d_o, op.dq, op.dk, op.dv};
  int wrong = 0;
  for (int64_t piece = 0; piece < batch / sequences; ++piece) {
    const int64_t rows = sequences * tokens;
    const auto documents = documents_of(starts, tokens, piece * rows, rows);
    const auto found = static_cast<int64_t>(documents.size());
    for (int64_t i = 0; i < sequences; ++i)
      wrong += table.overflow()[piece * sequences + i] != (found > table.documents() ? 1 : 0);
    for (int64_t i = 0; i <= table.documents(); ++i) {
      const auto [first, length] = i < found ? documents[static_cast<size_t>(i)] : std::pair<int64_t, int64_t>{rows, 0};
      wrong += table.first_rows(piece)[i] != first;
      if (i < table.documents()) wrong += table.lengths(piece)[i] != length;
      for (int n = 0; n < document_operands; ++n) {
        const auto operand = static_cast<DocumentOperand>(n);
        const int64_t expected = operand == DocumentOperand::lse
                                     ? first / tokens * op.num_heads * tokens + first % tokens
                                     : first * rows_of[static_cast<size_t>(n)].stride;
        wrong += table.offsets(piece, operand)[i] != expected;
      }
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("a table holds every document's length and its place in every operand") {
  expect_right_table(1, 1, 1, 1, 0);
  expect_right_table(2, 2, 7, 1, 0);     // whole sequences, as many as fit
  expect_right_table(2, 1, 7, 5, 0);     // lengths of 0 behind them
  expect_right_table(3, 3, 33, 33, 1);   // tokens, as many as fit
  expect_right_table(3, 1, 33, 32, 1);   // one too many
  expect_right_table(4, 2, 65, 8, 0.2);  // pieces with too many
  expect_right_table(6, 3, 128, 16, 0.1);
  expect_right_table(2, 2, 2500, 700, 0.3);  // more tokens than a block reads at a time
}

TEST_CASE("some pieces hold too many documents, and others do not") {
  std::vector<int32_t> starts(32, 0);
  for (size_t token = 1; token < 8; ++token) starts[8 + token] = static_cast<int32_t>(token);  // in the second sequence
  const AttentionBackward op = op_of(4, 8, 3, starts);
  std::vector<int64_t> memory(1 << 12, -1);
  const auto overflow = [&](int64_t sequences) {
    const DocumentTable table(reinterpret_cast<std::byte*>(memory.data()), 4, sequences, 3);
    list_documents(table, op, {});
    return std::vector<int32_t>(table.overflow(), table.overflow() + 4);
  };
  CHECK(overflow(1) == std::vector<int32_t>{0, 1, 0, 0});
  CHECK(overflow(2) == std::vector<int32_t>{1, 1, 0, 0});
  CHECK(overflow(4) == std::vector<int32_t>{0, 0, 0, 0});  // 11 documents in room for 12
}
