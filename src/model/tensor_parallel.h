// What the model's layers know of the tensor axis (arXiv 1909.08053; sequence parallelism: arXiv 2205.05198).
#pragma once

#include <cstdint>

#include "base/matrix.h"
#include "comm/lane.h"
#include "model/record.h"
#include "model/spec/shard.h"

namespace gptrain {

// Column-parallel linears compute a rank's share of the outputs, row-parallel ones a rank's part of every output, which
// is summed. With `sequence`, the residual stream, norms and dropout hold rows [rank N / size, (rank + 1) N / size) of
// a micro-batch only: sums become reduce-scatters, and column-parallel linears gather their inputs.
struct TensorParallel {
  TensorPlace place;
  bool sequence = false;
  Communicator* group = nullptr;  // of the lane; null: one rank
  Lane* lane = nullptr;           // null: one rank
};

// A micro-batch's N rows over the tensor ranks, and every collective that layers make of them. The ranks call the same
// functions in the same order. Groups and stream are the caller's.
class TensorRows {
 public:
  using Ticket = Lane::Ticket;

  TensorRows(const TensorParallel& tensor, int64_t rows) : tensor_(tensor), rows_(rows) {}

  int64_t size() const { return tensor_.place.size; }
  int64_t rank() const { return tensor_.place.rank; }
  bool is_split() const { return size() > 1; }
  bool has_own_rows() const { return tensor_.sequence; }  // of the residual stream, not all of them
  int64_t all_rows() const { return rows_; }
  // Rows of the residual stream that this rank holds, and the first of them.
  int64_t own_rows() const { return tensor_.sequence ? rows_ / size() : rows_; }
  int64_t first_row() const { return tensor_.sequence ? rank() * own_rows() : 0; }

  // A matrix of all rows [N, cols], which may still be on its way.
  struct Gathering {
    Matrix whole;
    Ticket ticket = Lane::done;
  };
  // All rows of what each rank holds its rows of, or the projections of all. Without sequence parallelism that is `rows`
  // itself; else it goes to `whole`, for which there is room_for_all_rows.
  Gathering begin_gather(const Matrix& rows, const Matrix& whole);
  Matrix room_for_all_rows(WorkspaceFrame& frame, const Matrix& rows) const;
  Matrix wait(const Gathering& gathering);

  // This rank's rows of a sum over the tensor ranks, likewise.
  struct Reduction {
    Matrix rows;
    Ticket ticket = Lane::done;
  };
  // Sums `part`, [N, cols]: in place without sequence parallelism, else into memory of `frame`.
  Reduction begin_sum(const Matrix& part, WorkspaceFrame& frame);
  Matrix wait(const Reduction& reduction);
  // The same at once, into `rows`: without sequence parallelism that is where `part` is.
  void sum_into(const Matrix& part, const Matrix& rows);

  // The largest of the ranks' values, element by element, in place.
  void take_max(const Matrix& values);
  // Every rank's matrix, one after the other by rows.
  void gather_all(const Matrix& own, const Matrix& all);
  // Sends rows of the rank `root` to all.
  Ticket begin_broadcast(const Matrix& rows, int64_t root);
  void wait(Ticket ticket);

 private:
  TensorParallel tensor_;
  int64_t rows_;
};

}  // namespace gptrain
