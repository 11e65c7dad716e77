#include "ops/timed_backend.h"

#include "ops/shape_text.h"

namespace gptrain {

void TimedBackend::start_timing() {
  events_.clear();
  timing_ = true;
}

std::vector<TimedEvent> TimedBackend::take_events() {
  timing_ = false;
  return std::exchange(events_, {});
}

template <typename Op>
void TimedBackend::run_timed(const Op& op) {
  inner_.synchronize();
  const double start = steady_seconds();
  inner_.run(op);
  inner_.synchronize();
  const double end = steady_seconds();
  const Footprint cost = footprint(op, inner_.target());
  events_.push_back({.name = Op::name,
                     .shape = shape_text(op),
                     .start_seconds = start,
                     .end_seconds = end,
                     .model_flops = recomputing_ ? 0 : cost.model_flops,
                     .executed_flops = cost.executed_flops,
                     .bytes_moved = cost.bytes_moved});
}

#define GPTRAIN_INSTANTIATE_TIMED(Op) template void TimedBackend::run_timed(const Op& op);
GPTRAIN_FOR_EACH_OP(GPTRAIN_INSTANTIATE_TIMED)
#undef GPTRAIN_INSTANTIATE_TIMED

}  // namespace gptrain
