#include "model/tensor_parallel.h"

namespace gptrain::inline model {

void TensorRows::wait(Ticket ticket) {
  if (tensor_.lane != nullptr) tensor_.lane->wait(ticket);
}

Matrix TensorRows::buffer_for_all_rows(WorkspaceFrame& frame, const Matrix& rows) const {
  return has_own_rows() ? frame.take(rows.dtype, rows.rows * size(), rows.cols) : Matrix{};
}

Matrix TensorRows::buffer_for_own_rows(WorkspaceFrame& frame, const Matrix& part) const {
  return has_own_rows() ? frame.take(part.dtype, own_rows(), part.cols) : part;
}

TensorRows::Gathering TensorRows::begin_gather(const Matrix& rows, const Matrix& whole) {
  if (!has_own_rows()) return {rows};
  return {whole, tensor_.lane->all_gather(tensor_.group, rows.data, whole.data, rows.count(), rows.dtype)};
}

Matrix TensorRows::wait(const Gathering& gathering) {
  wait(gathering.ticket);
  return gathering.whole;
}

TensorRows::Reduction TensorRows::begin_sum(const Matrix& part, WorkspaceFrame& frame) {
  if (!is_split()) return {part};
  const Matrix rows = buffer_for_own_rows(frame, part);
  return {rows, begin_sum(part, rows)};
}

TensorRows::Ticket TensorRows::begin_sum(const Matrix& part, const Matrix& rows) {
  return has_own_rows() ? tensor_.lane->reduce_scatter(tensor_.group, part.data, rows.data, rows.count(), rows.dtype)
                        : tensor_.lane->all_reduce(tensor_.group, part.data, part.count(), part.dtype);
}

Matrix TensorRows::wait(const Reduction& reduction) {
  wait(reduction.ticket);
  return reduction.rows;
}

void TensorRows::sum_into(const Matrix& part, const Matrix& rows) {
  if (is_split()) wait(begin_sum(part, rows));
}

void TensorRows::take_max(const Matrix& values) {
  if (!is_split()) return;
  wait(tensor_.lane->all_reduce(tensor_.group, values.data, values.count(), values.dtype, ReduceOp::max));
}

void TensorRows::gather_all(const Matrix& own, const Matrix& all) {
  wait(tensor_.lane->all_gather(tensor_.group, own.data, all.data, own.count(), own.dtype));
}

TensorRows::Ticket TensorRows::begin_broadcast(const Matrix& rows, int64_t root) {
  return tensor_.lane->broadcast(tensor_.group, rows.data, rows.count(), rows.dtype, static_cast<int>(root));
}

}  // namespace gptrain::model
