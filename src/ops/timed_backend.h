// A backend that forwards all calls to another one and, while its log is on, logs the times of each op and copy.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/event_log.h"
#include "ops/backend.h"
#include "ops/footprint.h"
#include "ops/side_queue.h"

namespace gptrain::inline ops {

// While the log is off, an op costs one more branch and no allocation. While it is on, the backend waits for the device
// before and after every op and copy, side queues' copies too. So device work overlaps neither the host nor other
// queues; results have the same bits. On a GPU ops are timed by the device's clock. Copies, and ops on a CPU, are timed
// by the host's.
class TimedBackend final : public Backend {
 public:
  TimedBackend(Backend& inner, EventLog& log) : inner_(inner), log_(log) {}  // both borrowed

  const Target& target() const override { return inner_.target(); }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override { return inner_.allocate(bytes); }
  void set_scratch(std::byte* data, int64_t bytes) override { inner_.set_scratch(data, bytes); }
  void upload(void* device, const void* host, int64_t bytes) override;
  void download(void* host, const void* device, int64_t bytes) override;
  void synchronize() override { inner_.synchronize(); }
  // While the log is on, ops run one by one, not as a recording.
  void run_recorded(const RecordingKey& key, const std::function<void()>& ops) override {
    if (log_.on()) return ops();
    inner_.run_recorded(key, ops);
  }
  std::string algorithms() const override { return inner_.algorithms(); }
  void use_algorithms(const std::string& record) override { inner_.use_algorithms(record); }
  void set_choosing(bool choosing) override { inner_.set_choosing(choosing); }
  std::unique_ptr<PackedLinear> pack(const LinearForward& op, const Allocate& allocate) override {
    return inner_.pack(op, allocate);
  }
  std::string take_warnings() override { return inner_.take_warnings(); }
  std::unique_ptr<SideQueue> make_side_queue() override;

#define GPTRAIN_TIMED_RUN(Op)              \
  void run(const Op& op) override {        \
    if (!log_.on()) return inner_.run(op); \
    run_timed(op);                         \
  }
  GPTRAIN_FOR_EACH_OP(GPTRAIN_TIMED_RUN)
#undef GPTRAIN_TIMED_RUN

 private:
  template <typename Op>
  void run_timed(const Op& op);

  Backend& inner_;
  EventLog& log_;
  std::unique_ptr<SideQueue> clock_;  // null until an op is timed, and always on a CPU
};

}  // namespace gptrain::ops
