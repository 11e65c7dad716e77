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
  // RETURN whether products alternate with the exchange of their rows, and in how many pieces (model/row_pieces.h).
  bool overlaps() const { return is_split() && tensor_.pieces > 1; }
  int64_t pieces() const { return tensor_.pieces; }
  // Begins to sum the ranks' `part` into `rows`: this rank's rows, or without sequence parallelism `part` itself.
  Ticket begin_sum(const Matrix& part, const Matrix& rows);

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
  TensorParallel tensor_;
  int64_t rows_;
};

}  // namespace gptrain::model
