// The linears of a unit over the tensor ranks, and the collectives around them.
#include "model/units.h"

namespace gptrain {

Matrix Units::room_for_all_rows(WorkspaceFrame& frame, const Matrix& rows) const {
  return tensor_.sequence ? frame.take(rows.dtype, shape_.rows(), rows.cols) : Matrix{};
}

Units::Gathering Units::begin_gather(const Matrix& rows, const Matrix& whole) {
  if (!tensor_.sequence) return {rows};
  return {whole, tensor_.lane->all_gather(tensor_.group, rows.data, whole.data, rows.count(), rows.dtype)};
}

Matrix Units::wait(const Gathering& gathering) {
  if (tensor_.lane != nullptr) tensor_.lane->wait(gathering.ticket);
  return gathering.whole;
}

Units::Reduction Units::begin_sum(const Matrix& part, WorkspaceFrame& frame) {
  if (!is_split()) return {part};
  if (!tensor_.sequence) return {part, tensor_.lane->all_reduce(tensor_.group, part.data, part.count(), part.dtype)};
  const Matrix rows = frame.take(part.dtype, stream_rows(), part.cols);
  return {rows, tensor_.lane->reduce_scatter(tensor_.group, part.data, rows.data, rows.count(), rows.dtype)};
}

Matrix Units::wait(const Reduction& reduction) {
  if (tensor_.lane != nullptr) tensor_.lane->wait(reduction.ticket);
  return reduction.rows;
}

void Units::column_linear(const UnitCall& call, const Factor& factor, int64_t w, int64_t bias, const Matrix& y,
                          const Matrix& pre_activation) {
  if (has_fp8_linears()) return fp8_forward(call, factor, w, bias, y);
  const Matrix& x = factor.x;
  // Of the rows of y from `first` on.
  const auto product = [&](const Matrix& from, int64_t first) {
    backend_.run(LinearForward{
        .x = from,
        .w = weight(call, w),
        .bias = weight(call, bias),
        .y = y.row_range(first, from.rows),
        .true_out = model_rows(w),
        .pre_activation = pre_activation.given() ? pre_activation.row_range(first, from.rows) : Matrix{}});
  };
  if (!tensor_.sequence) {
    product(x, 0);
    return;
  }
  WorkspaceFrame frame(*call.workspace);
  const Matrix whole = frame.take(x.dtype, shape_.rows(), x.cols);
  const auto piece = [&](int64_t rank) { return whole.row_range(rank * x.rows, x.rows); };
  const int64_t own = tensor_.place.rank;
  const auto send = [&](int64_t rank) {
    void* const data = rank == own ? x.data : piece(rank).data;
    return tensor_.lane->broadcast(tensor_.group, data, x.count(), x.dtype, static_cast<int>(rank));
  };
  // Every rank issues the pieces in the same order, one ahead of the product that needs it.
  Lane::Ticket next = send(0);
  product(x, own * x.rows);
  for (int64_t rank = 0; rank < tensor_.place.size; ++rank) {
    const Lane::Ticket ready = next;
    if (rank + 1 < tensor_.place.size) next = send(rank + 1);
    tensor_.lane->wait(ready);
    if (rank != own) product(piece(rank), rank * x.rows);
  }
}

void Units::row_linear(const UnitCall& call, const Factor& x, int64_t w, int64_t bias, const Matrix& part) {
  const int64_t added = tensor_.place.rank == 0 ? bias : -1;  // in the sum once
  if (has_fp8_linears()) return fp8_forward(call, x, w, added, part);
  backend_.run(LinearForward{.x = x.x, .w = weight(call, w), .bias = weight(call, added), .y = part});
}

void Units::input_product(const UnitCall& call, const Factor& dy, int64_t w, int64_t bias, const Matrix& dx) {
  if (has_fp8_linears()) return fp8_backward_input(call, dy, w, bias, dx);
  backend_.run(LinearBackwardInput{.dy = dy.x, .w = weight(call, w), .dx = dx, .true_out = model_rows(w)});
}

void Units::weight_product(const UnitCall& call, const Matrix& x, const Matrix& dy, int64_t w, int64_t bias) {
  backend_.run(LinearBackwardWeight{.x = x,
                                    .dy = dy,
                                    .dw = gradient(call, w),
                                    .d_bias = gradient(call, bias),
                                    .accumulate = call.accumulate,
                                    .true_out = model_rows(w)});
}

}  // namespace gptrain
