// Products in pieces of rows, which alternate with the tensor ranks' exchange of the rows: one piece travels while the
// next is computed.
#pragma once

#include <cstdint>

#include "base/matrix.h"
#include "model/tensor_parallel.h"

namespace gptrain::inline model {

// Computes the ranks' parts of a sum in pieces of rows, and begins each piece's sum before the next is computed.
// compute(first, into) computes rows [first, first + into.rows) of this rank's part into `into`, rows of `part`, which
// are in the order of the pieces. RETURNS this rank's rows of the sum, in `rows`, valid after wait(). REQUIRES:
// tensor.overlaps(); without sequence parallelism `rows` is `part`.
template <typename Compute>
TensorRows::Reduction sum_in_pieces(TensorRows& tensor, const Matrix& part, const Matrix& rows,
                                    const Compute& compute) {
  TensorRows::Reduction sum{rows};
  for (int64_t piece = 0; piece < tensor.pieces(); ++piece) {
    const int64_t first = piece * rows.rows / tensor.pieces(), end = (piece + 1) * rows.rows / tensor.pieces();
    const int64_t count = end - first, ranks = tensor.has_own_rows() ? tensor.size() : 1;
    if (count == 0) continue;
    const Matrix parts = part.row_range(first * ranks, count * ranks);
    for (int64_t rank = 0; rank < ranks; ++rank)
      compute(rank * rows.rows + first, parts.row_range(rank * count, count));
    sum.ticket = tensor.begin_sum(parts, rows.row_range(first, count));
  }
  return sum;
}

// Gathers the ranks' rows, `own` on this one, and calls multiply(rows, rank) for each rank's, for this rank's first,
// for another's once they are there: one rank's rows travel while the rows before are multiplied. `whole`: memory for
// all rows; this rank's are not written. REQUIRES: tensor.has_own_rows().
template <typename Multiply>
void multiply_gathered(TensorRows& tensor, const Matrix& own, const Matrix& whole, const Multiply& multiply) {
  const auto rows_of = [&](int64_t rank) {
    return rank == tensor.rank() ? own : whole.row_range(rank * own.rows, own.rows);
  };
  // Every rank issues the pieces in the same order, one ahead of the product that needs it.
  TensorRows::Ticket next = tensor.begin_broadcast(rows_of(0), 0);
  multiply(own, tensor.rank());
  for (int64_t rank = 0; rank < tensor.size(); ++rank) {
    const TensorRows::Ticket ready = next;
    if (rank + 1 < tensor.size()) next = tensor.begin_broadcast(rows_of(rank + 1), rank + 1);
    tensor.wait(ready);
    if (rank != tensor.rank()) multiply(rows_of(rank), rank);
  }
}

}  // namespace gptrain::model
