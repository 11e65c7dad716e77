#include "ops/timed_backend.h"

#include "ops/op_event.h"

namespace gptrain::inline ops {
namespace {

// Runs `work`, waits until the device has finished it, and logs its times. `clock`: a queue whose device clock times
// the work, if it is among the backend's ops, so that the host's launching and waiting do not count; null: the host's
// clock.
template <typename Work>
void log_timed(Backend& backend, EventLog& log, Event event, const Work& work, SideQueue* clock = nullptr) {
  constexpr int start = 0, end = 1;
  backend.synchronize();
  event.start_seconds = steady_seconds();
  if (clock != nullptr) clock->time_ops(start);
  work();
  if (clock != nullptr) clock->time_ops(end);
  backend.synchronize();
  event.end_seconds = clock != nullptr ? event.start_seconds + clock->seconds_between(start, end) : steady_seconds();
  log.add(std::move(event));
}

// Side queue that, while the log is on, waits for each copy when it is queued.
class TimedSideQueue final : public SideQueue {
 public:
  TimedSideQueue(std::unique_ptr<SideQueue> inner, Backend& backend, EventLog& log)
      : inner_(std::move(inner)), backend_(backend), log_(log) {}

  void mark_ops(int mark) override { inner_->mark_ops(mark); }
  void follow_ops(int mark) override { inner_->follow_ops(mark); }
  void mark_work(int mark) override { inner_->mark_work(mark); }
  void ops_follow(int mark) override { inner_->ops_follow(mark); }
  void await_ops(int mark) override { inner_->await_ops(mark); }
  void await_work(int mark) override { inner_->await_work(mark); }
  void finish_work(int mark) override { inner_->finish_work(mark); }
  void time_ops(int time) override { inner_->time_ops(time); }
  double seconds_between(int from, int to) override { return inner_->seconds_between(from, to); }
  void* handle() const override { return inner_->handle(); }
  std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes) override { return inner_->allocate_host(bytes); }
  void while_waiting(std::function<void()> check) override { inner_->while_waiting(std::move(check)); }

  void upload(void* device, const void* host, int64_t bytes) override {
    if (!log_.on()) return inner_->upload(device, host, bytes);
    log_timed(backend_, log_, copy_event(upload_name, bytes), [&] { inner_->upload(device, host, bytes); });
  }
  void download(void* host, const void* device, int64_t bytes) override {
    if (!log_.on()) return inner_->download(host, device, bytes);
    log_timed(backend_, log_, copy_event(download_name, bytes), [&] { inner_->download(host, device, bytes); });
  }
  void queue_upload(void* device, const void* host, int64_t bytes) override {
    if (!log_.on()) return inner_->queue_upload(device, host, bytes);
    log_timed(backend_, log_, copy_event(upload_name, bytes, true), [&] { inner_->upload(device, host, bytes); });
  }
  void queue_download(void* host, const void* device, int64_t bytes) override {
    if (!log_.on()) return inner_->queue_download(host, device, bytes);
    log_timed(backend_, log_, copy_event(download_name, bytes, true), [&] { inner_->download(host, device, bytes); });
  }
  void copy_among_ops(void* to, const void* from, int64_t bytes) override {
    if (!log_.on()) return inner_->copy_among_ops(to, from, bytes);
    log_timed(backend_, log_, copy_event(copy_among_ops_name, bytes), [&] { inner_->copy_among_ops(to, from, bytes); });
  }

 private:
  const std::unique_ptr<SideQueue> inner_;
  Backend& backend_;
  EventLog& log_;
};

}  // namespace

template <typename Op>
void TimedBackend::run_timed(const Op& op) {
  if (!clock_) clock_ = inner_.make_side_queue();
  log_timed(
      inner_, log_, op_event(op, footprint(op, inner_.target())), [&] { inner_.run(op); }, clock_.get());
}

#define GPTRAIN_INSTANTIATE_TIMED(Op) template void TimedBackend::run_timed(const Op& op);
GPTRAIN_FOR_EACH_OP(GPTRAIN_INSTANTIATE_TIMED)
#undef GPTRAIN_INSTANTIATE_TIMED

void TimedBackend::upload(void* device, const void* host, int64_t bytes) {
  if (!log_.on()) return inner_.upload(device, host, bytes);
  log_timed(inner_, log_, copy_event(upload_name, bytes), [&] { inner_.upload(device, host, bytes); });
}

void TimedBackend::download(void* host, const void* device, int64_t bytes) {
  if (!log_.on()) return inner_.download(host, device, bytes);
  log_timed(inner_, log_, copy_event(download_name, bytes), [&] { inner_.download(host, device, bytes); });
}

std::unique_ptr<SideQueue> TimedBackend::make_side_queue() {
  auto queue = inner_.make_side_queue();
  return queue ? std::make_unique<TimedSideQueue>(std::move(queue), inner_, log_) : nullptr;
}

}  // namespace gptrain::ops
