// The head: final norm, output projection and loss. Logits exist for one chunk of rows at a time; since the loss' scale
// is known beforehand, a chunk's gradients are taken while its logits are there. Over tensor ranks each has the logits
// of its slice of the vocabulary, and no rank all of them.
#include <algorithm>

#include "model/units.h"

namespace gptrain {

Units::NormSite Units::head_norm_site(const UnitCall& call) const {
  const HeadFields& f = head_fields_;
  const bool has_mean = shape_.model.norm == NormKind::layernorm;
  return {final_norm_, final_norm_bias_, has_mean ? f.saved.at(call.saved, f.mean) : Matrix{},
          f.saved.at(call.saved, f.rstd)};
}

void Units::head_forward(const UnitCall& call) {
  norm_forward(call, head_norm_site(call), stream(call.input), {head_fields_.saved.at(call.saved, head_fields_.norm)});
}

void Units::loss(const UnitCall& call) {
  const Matrix d_norm = head_fields_.gradients.at(call.gradient, head_fields_.d_norm);
  if (!is_split()) return sum_losses(call, d_norm);
  WorkspaceFrame frame(*call.workspace);
  const Matrix part = tensor_.sequence ? frame.take(d_norm.dtype, shape_.rows(), d_norm.cols) : d_norm;
  sum_losses(call, part);
  Lane& lane = *tensor_.lane;
  lane.wait(tensor_.sequence
                ? lane.reduce_scatter(tensor_.group, part.data, d_norm.data, d_norm.count(), d_norm.dtype)
                : lane.all_reduce(tensor_.group, part.data, part.count(), part.dtype));
}

void Units::evaluate(const UnitCall& call) { sum_losses(call, {}); }

void Units::sum_losses(const UnitCall& call, const Matrix& d_norm) {
  const Matrix w = head_matrix(call.head_matrix.weights, shape_.precision.compute);
  const int64_t n = shape_.rows();
  const int64_t chunk = std::min(shape_.loss_chunk_tokens, n);
  WorkspaceFrame frame(*call.workspace);
  const Matrix own_rows = head_fields_.saved.at(call.saved, head_fields_.norm);
  const Matrix norm = wait(begin_gather(own_rows, room_for_all_rows(frame, own_rows)));
  const Matrix losses = frame.take(DType::f32, 1, n);
  const Matrix all_logits = frame.take(shape_.precision.compute, chunk, w.rows);
  for (int64_t first = 0; first < n; first += chunk) {
    const int64_t rows = std::min(chunk, n - first);
    const Matrix logits = all_logits.row_range(0, rows);
    const Matrix x = norm.row_range(first, rows);
    backend_.run(LinearForward{.x = x, .w = w, .bias = {}, .y = logits, .true_out = true_tokens()});
    cross_entropy(call, first, logits, d_norm.given(), losses.column_range(first, rows));
    if (!d_norm.given()) continue;
    backend_.run(
        LinearBackwardInput{.dy = logits, .w = w, .dx = d_norm.row_range(first, rows), .true_out = true_tokens()});
    backend_.run(LinearBackwardWeight{.x = x,
                                      .dy = logits,
                                      .dw = head_matrix(call.head_matrix.gradients, DType::f32),
                                      .d_bias = {},
                                      .accumulate = call.accumulate || first > 0,
                                      .true_out = true_tokens()});
  }
  backend_.run(AccumulateLoss{.losses = losses, .state = call.state});
}

void Units::cross_entropy(const UnitCall& call, int64_t first, const Matrix& logits, bool with_gradient,
                          const Matrix& losses) {
  WorkspaceFrame frame(*call.workspace);
  const int32_t* targets = call.targets + first;
  Matrix all;
  if (is_split()) {
    const Matrix own = frame.take(DType::f32, 3, logits.rows);
    all = frame.take(DType::f32, 3 * tensor_.place.size, logits.rows);
    backend_.run(CrossEntropyStatistics{.vocab_size = shape_.model.vocab_size,
                                        .first_token = first_token(),
                                        .targets = targets,
                                        .logits = logits,
                                        .statistics = own});
    tensor_.lane->wait(tensor_.lane->all_gather(tensor_.group, own.data, all.data, own.count(), own.dtype));
  }
  backend_.run(CrossEntropy{.vocab_size = shape_.model.vocab_size,
                            .z_loss = shape_.model.z_loss,
                            .targets = targets,
                            .state = call.state,
                            .logits = logits,
                            .d_logits = with_gradient ? logits : Matrix{},
                            .losses = losses,
                            .statistics = all,
                            .first_token = first_token()});
}

void Units::logits(const UnitCall& call, int64_t row, const Matrix& out) {
  const Matrix norm = head_fields_.saved.at(call.saved, head_fields_.norm);
  backend_.run(LinearForward{.x = norm.row_range(row, 1),
                             .w = head_matrix(call.head_matrix.weights, shape_.precision.compute),
                             .bias = {},
                             .y = out,
                             .true_out = shape_.model.vocab_size});
}

void Units::head_backward_input(const UnitCall& call) {
  norm_backward(call, head_norm_site(call), head_fields_.gradients.at(call.gradient, head_fields_.d_norm),
                stream(call.input), {}, {stream(call.d_input), carrier_amax(call.d_input)});
}

}  // namespace gptrain
