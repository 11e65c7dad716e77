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

// Logs the event, and returns the work with the event's times set when it runs.
std::function<void()> DeferredBackend::timed(std::function<void()> work, Event event) {
  const int64_t number = log_->add(std::move(event));
  return [this, work = std::move(work), number, log = log_] {
    const double start = steady_seconds();
    work();
    inner_.synchronize();
    log->set_times(number, start, steady_seconds());
  };
}

void DeferredBackend::upload(void* device, const void* host, int64_t bytes) {
  if (!logs()) return inner_.upload(device, host, bytes);
  timed([&] { inner_.upload(device, host, bytes); }, copy_event(upload_name, bytes))();
}

void DeferredBackend::download(void* host, const void* device, int64_t bytes) {
  if (!logs()) return inner_.download(host, device, bytes);
  timed([&] { inner_.download(host, device, bytes); }, copy_event(download_name, bytes))();
}

template <typename Op>
void DeferredBackend::run_op(const Op& op) {
  std::function<void()> work = [this, op] { inner_.run(op); };
  if (logs()) work = timed(std::move(work), op_event(op, footprint(op, inner_.target())));
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
