// The head: final norm, output projection and loss. Logits exist for one chunk of rows at a time; since the loss' scale
// is known beforehand, a chunk's gradients are taken while its logits are there.
#include <algorithm>

#include "model/units.h"

namespace gptrain {

void Units::head_forward(const UnitCall& call) {
  const HeadFields& f = head_fields_;
  const bool has_mean = shape_.model.norm == NormKind::layernorm;
  norm_forward(stream(call.input), {}, {}, {}, final_norm_, final_norm_bias_, f.saved.at(call.saved, f.norm),
               has_mean ? f.saved.at(call.saved, f.mean) : Matrix{}, f.saved.at(call.saved, f.rstd));
}

void Units::loss(const UnitCall& call) {
  sum_losses(call, head_fields_.gradients.at(call.gradient, head_fields_.d_norm));
}

void Units::evaluate(const UnitCall& call) { sum_losses(call, {}); }

void Units::sum_losses(const UnitCall& call, const Matrix& d_norm) {
  const Matrix norm = head_fields_.saved.at(call.saved, head_fields_.norm);
  const Matrix w = weight(head_weight());
  const int64_t true_out = shape_.model.vocab_size;
  const int64_t n = shape_.rows();
  const int64_t chunk = std::min(shape_.loss_chunk_tokens, n);
  WorkspaceFrame frame(*call.workspace);
  const Matrix losses = frame.take(DType::f32, 1, n);
  const Matrix all_logits = frame.take(shape_.precision.compute, chunk, w.rows);
  for (int64_t first = 0; first < n; first += chunk) {
    const int64_t rows = std::min(chunk, n - first);
    const Matrix logits = all_logits.row_range(0, rows);
    const Matrix x = norm.row_range(first, rows);
    backend_.run(LinearForward{.x = x, .w = w, .bias = {}, .y = logits, .true_out = true_out});
    backend_.run(CrossEntropy{.vocab_size = true_out,
                              .z_loss = shape_.model.z_loss,
                              .targets = call.targets + first,
                              .state = call.state,
                              .logits = logits,
                              .d_logits = d_norm.given() ? logits : Matrix{},
                              .losses = losses.column_range(first, rows)});
    if (!d_norm.given()) continue;
    backend_.run(LinearBackwardInput{.dy = logits, .w = w, .dx = d_norm.row_range(first, rows), .true_out = true_out});
    backend_.run(LinearBackwardWeight{.x = x,
                                      .dy = logits,
                                      .dw = gradient(head_weight()),
                                      .d_bias = {},
                                      .accumulate = call.accumulate || first > 0,
                                      .true_out = true_out});
  }
  backend_.run(AccumulateLoss{.losses = losses, .state = call.state});
}

void Units::logits(const UnitCall& call, int64_t row, const Matrix& out) {
  const Matrix norm = head_fields_.saved.at(call.saved, head_fields_.norm);
  backend_.run(LinearForward{.x = norm.row_range(row, 1),
                             .w = weight(head_weight()),
                             .bias = {},
                             .y = out,
                             .true_out = shape_.model.vocab_size});
}

void Units::head_backward_input(const UnitCall& call) {
  const HeadFields& f = head_fields_;
  const bool has_mean = shape_.model.norm == NormKind::layernorm;
  norm_backward(f.gradients.at(call.gradient, f.d_norm), stream(call.input), final_norm_, final_norm_bias_,
                has_mean ? f.saved.at(call.saved, f.mean) : Matrix{}, f.saved.at(call.saved, f.rstd), {},
                stream(call.d_input), call.accumulate);
}

}  // namespace gptrain
