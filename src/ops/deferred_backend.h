// A backend whose ops another thread may run later.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/event_log.h"
#include "ops/backend.h"

namespace gptrain::inline ops {

// Forwards all calls to another backend. Between `defer` and `take`, ops are kept instead, and run when their works are
// called. Events of ops and copies are logged when they are called, with the times at which they run.
class DeferredBackend final : public Backend {
 public:
  using Works = std::vector<std::function<void()>>;

  // Borrowed. REQUIRES: `inner` writes to no log itself if `set_log` sets one.
  explicit DeferredBackend(Backend& inner) : inner_(inner) {}

  void set_log(EventLog* log) { log_ = log; }  // borrowed; null: none
  void defer() { defers_ = true; }
  // RETURNS the ops called since `defer`, in order.
  Works take();

  const Target& target() const override { return inner_.target(); }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override { return inner_.allocate(bytes); }
  void set_scratch(std::byte* data, int64_t bytes) override { inner_.set_scratch(data, bytes); }
  void upload(void* device, const void* host, int64_t bytes) override;
  void download(void* host, const void* device, int64_t bytes) override;
  void synchronize() override { inner_.synchronize(); }
  std::unique_ptr<SideQueue> make_side_queue() override;

#define GPTRAIN_DEFERRED_RUN(Op) \
  void run(const Op& op) override { run_op(op); }
  GPTRAIN_FOR_EACH_OP(GPTRAIN_DEFERRED_RUN)
#undef GPTRAIN_DEFERRED_RUN

 private:
  template <typename Op>
  void run_op(const Op& op);
  bool logs() const { return log_ != nullptr && log_->on(); }
  std::function<void()> timed(std::function<void()> work, Event event);

  Backend& inner_;
  EventLog* log_ = nullptr;
  bool defers_ = false;
  Works works_;
};

}  // namespace gptrain::ops
