// The tensor axis in the model's layers (arXiv 1909.08053; sequence parallelism: arXiv 2205.05198).
#pragma once

#include <cstdint>

#include "base/matrix.h"
#include "comm/lane.h"
#include "model/record.h"
#include "model/spec/shard.h"

namespace gptrain::inline model {

// Column-parallel linears compute some of the outputs on each rank; row-parallel ones compute on each rank a part of
// every output, and the parts are summed. With `sequence`, a rank's residual stream, norms and dropout have only rows
// [rank N / size, (rank + 1) N / size) of a micro-batch; sums become reduce-scatters, and column-parallel linears
// gather their inputs.
struct TensorParallel {
  TensorRank axis;
  bool sequence = false;
  // Pieces of rows in which products alternate with the exchange of their rows, so that one piece is in flight while
  // the next is computed; 1: products are whole.
  int64_t pieces = 1;
  Communicator* group = nullptr;  // group of the lane; null: one rank
  Lane* lane = nullptr;           // null: one rank
};

// Rows of a micro-batch over the tensor ranks, and the layers' collectives on them. REQUIRES: all ranks call the same
// collectives in the same order; the caller owns group and lane, which outlive it.
class TensorRows {
 public:
  using Ticket = Lane::Ticket;

  TensorRows(const TensorParallel& tensor, int64_t rows) : tensor_(tensor), rows_(rows) {}

  int64_t size() const { return tensor_.axis.size; }
  int64_t rank() const { return tensor_.axis.rank; }
  bool is_split() const { return size() > 1; }
  bool has_own_rows() const { return tensor_.sequence; }  // the rank holds only some rows of the residual stream
  int64_t all_rows() const { return rows_; }
  // RETURN the number of rows of the residual stream that this rank holds, and the first one.
  int64_t own_rows() const { return tensor_.sequence ? rows_ / size() : rows_; }
  int64_t first_row() const { return tensor_.sequence ? rank() * own_rows() : 0; }

  // A matrix of all rows, [N, cols], valid after wait().
  struct Gathering {
    Matrix whole;
    Ticket ticket = Lane::done;
  };
  // Begins to gather all ranks' `rows` (rows of a matrix, or of its projection) into `whole`, memory from
  // buffer_for_all_rows. Without sequence parallelism the result is `rows` itself.
  Gathering begin_gather(const Matrix& rows, const Matrix& whole);
  Matrix buffer_for_all_rows(WorkspaceFrame& frame, const Matrix& rows) const;
  // RETURNS memory for this rank's rows of a sum of the ranks' `part`: `part` itself without sequence parallelism.
  Matrix buffer_for_own_rows(WorkspaceFrame& frame, const Matrix& part) const;
  Matrix wait(const Gathering& gathering);

  // This rank's rows of a sum over the tensor ranks, valid after wait().
  struct Reduction {
    Matrix rows;
    Ticket ticket = Lane::done;
  };
  // Begins to sum the ranks' `part`, [N, cols]: in place without sequence parallelism, else into memory of `frame`.
  Reduction begin_sum(const Matrix& part, WorkspaceFrame& frame);
  Matrix wait(const Reduction& reduction);
  bool overlaps() const { return is_split() && tensor_.pieces > 1; }
  // Computes the ranks' parts of a sum in pieces of rows, and begins each piece's sum before the next is computed.
  // compute(first, into) computes rows [first, first + into.rows) of this rank's part into `into`, rows of `part`,
  // which are in the order of the pieces. RETURNS this rank's rows of the sum, in `rows`, valid after wait(). REQUIRES:
  // overlaps(); without sequence parallelism `rows` is `part`.
  template <typename Compute>
  Reduction sum_in_pieces(const Matrix& part, const Matrix& rows, const Compute& compute);
  // Gathers the ranks' rows, `own` on this one, and calls multiply(rows, rank) for each rank's, for this rank's first,
  // for another's once they are there: one rank's rows are in flight while the rows before are multiplied. `whole`:
  // memory for all rows; this rank's are not written.
  template <typename Multiply>
  void multiply_gathered(const Matrix& own, const Matrix& whole, const Multiply& multiply);

  // Sums the ranks' `part` into `rows` and waits. REQUIRES: without sequence parallelism `rows` is `part`.
  void sum_into(const Matrix& part, const Matrix& rows);

  // Replaces each element by its maximum over the ranks.
  void take_max(const Matrix& values);
  // Writes the ranks' matrices into `all`, one below the other.
  void gather_all(const Matrix& own, const Matrix& all);
  // Begins to send `rows` of rank `root` to all ranks.
  Ticket begin_broadcast(const Matrix& rows, int64_t root);
  void wait(Ticket ticket);

 private:
  // Begins to sum the ranks' `part` into `rows`: this rank's rows, or without sequence parallelism all rows in place.
  Ticket begin_sum(const Matrix& part, const Matrix& rows);

  TensorParallel tensor_;
  int64_t rows_;
};

template <typename Compute>
TensorRows::Reduction TensorRows::sum_in_pieces(const Matrix& part, const Matrix& rows, const Compute& compute) {
  Reduction sum{rows};
  for (int64_t piece = 0; piece < tensor_.pieces; ++piece) {
    const int64_t first = piece * own_rows() / tensor_.pieces, end = (piece + 1) * own_rows() / tensor_.pieces;
    if (first == end) continue;
    if (has_own_rows()) {
      const Matrix parts = part.row_range(first * size(), (end - first) * size());
      for (int64_t rank = 0; rank < size(); ++rank)
        compute(rank * own_rows() + first, parts.row_range(rank * (end - first), end - first));
      sum.ticket = begin_sum(parts, rows.row_range(first, end - first));
    } else {
      compute(first, part.row_range(first, end - first));
      sum.ticket = begin_sum(part.row_range(first, end - first), rows.row_range(first, end - first));
    }
  }
  return sum;
}

template <typename Multiply>
void TensorRows::multiply_gathered(const Matrix& own, const Matrix& whole, const Multiply& multiply) {
  const auto rows_of = [&](int64_t of) { return of == rank() ? own : whole.row_range(of * own.rows, own.rows); };
  // Every rank issues the pieces in the same order, one ahead of the product that needs it.
  Ticket next = begin_broadcast(rows_of(0), 0);
  multiply(own, rank());
  for (int64_t from = 0; from < size(); ++from) {
    const Ticket ready = next;
    if (from + 1 < size()) next = begin_broadcast(rows_of(from + 1), from + 1);
    wait(ready);
    if (from != rank()) multiply(rows_of(from), from);
  }
}

}  // namespace gptrain::model
