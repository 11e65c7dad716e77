#include "ops/deferred_backend.h"

#include <utility>

#include "ops/op_event.h"
#include "ops/side_queue.h"

namespace gptrain::inline ops {

DeferredBackend::Works DeferredBackend::take() {
  defers_ = false;
  return std::exchange(works_, {});
}

std::unique_ptr<SideQueue> DeferredBackend::make_side_queue() { return inner_.make_side_queue(); }

template <typename Op>
void DeferredBackend::run_op(const Op& op) {
  std::function<void()> work = [this, op] { inner_.run(op); };
  if (log_ != nullptr && log_->on()) {
    const int64_t number = log_->add(op_event(op, footprint(op, inner_.target())));
    work = [this, work = std::move(work), number, log = log_] {
      const double start = steady_seconds();
      work();
      inner_.synchronize();
      log->set_times(number, start, steady_seconds());
    };
  }
  if (defers_) {
    works_.push_back(std::move(work));
  } else {
    work();
  }
}

#define GPTRAIN_INSTANTIATE_DEFERRED(Op) template void DeferredBackend::run_op(const Op& op);
GPTRAIN_FOR_EACH_OP(GPTRAIN_INSTANTIATE_DEFERRED)
#undef GPTRAIN_INSTANTIATE_DEFERRED

}  // namespace gptrain::ops
