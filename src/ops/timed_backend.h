// A backend that passes everything on to another one, and while it times writes down when each op ran.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/timed_event.h"
#include "ops/backend.h"
#include "ops/footprint.h"
#include "ops/side_queue.h"

namespace gptrain {

// While it does not time, an op costs one branch more and nothing is allocated. While it times, the device is
// waited for before and after every op, so ops of a device that runs ahead of the host no longer overlap; results are
// the same bits. Copies between host and device are passed on untimed.
class TimedBackend final : public Backend {
 public:
  explicit TimedBackend(Backend& inner) : inner_(inner) {}  // borrowed

  void start_timing();
  // Ends timing. Events in the order the ops ran; they do not overlap.
  std::vector<TimedEvent> take_events();
  // While true, ops count as executed but not as part of the model, as on PlanBackend.
  void set_recomputing(bool recomputing) { recomputing_ = recomputing; }

  const Target& target() const override { return inner_.target(); }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override { return inner_.allocate(bytes); }
  void set_scratch(std::byte* data, int64_t bytes) override { inner_.set_scratch(data, bytes); }
  void upload(void* device, const void* host, int64_t bytes) override { inner_.upload(device, host, bytes); }
  void download(void* host, const void* device, int64_t bytes) override { inner_.download(host, device, bytes); }
  void synchronize() override { inner_.synchronize(); }
  // Ops are timed one by one, so those of a recorded step are run.
  void run_recorded(const RecordingKey& key, const std::function<void()>& ops) override {
    if (timing_) return ops();
    inner_.run_recorded(key, ops);
  }
  std::string algorithms() const override { return inner_.algorithms(); }
  void use_algorithms(const std::string& record) override { inner_.use_algorithms(record); }
  void set_choosing(bool choosing) override { inner_.set_choosing(choosing); }
  std::string take_warnings() override { return inner_.take_warnings(); }
  std::unique_ptr<SideQueue> make_side_queue() override { return inner_.make_side_queue(); }

#define GPTRAIN_TIMED_RUN(Op)       \
  void run(const Op& op) override { \
    if (!timing_) {              \
      inner_.run(op);               \
      return;                       \
    }                               \
    run_timed(op);                  \
  }
  GPTRAIN_FOR_EACH_OP(GPTRAIN_TIMED_RUN)
#undef GPTRAIN_TIMED_RUN

 private:
  template <typename Op>
  void run_timed(const Op& op);

  Backend& inner_;
  bool timing_ = false;
  bool recomputing_ = false;
  std::vector<TimedEvent> events_;
};

}  // namespace gptrain
