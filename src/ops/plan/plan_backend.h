// The `plan` backend: runs a step without memory or arithmetic and logs the events that the real step would have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/event_log.h"
#include "ops/backend.h"
#include "ops/footprint.h"
#include "ops/op_event.h"
#include "ops/side_queue.h"

namespace gptrain::inline ops {

// Addresses returned by `allocate` are distinct and never read or written. Copies are logged only.
class PlanBackend : public Backend {
 public:
  // `log`, borrowed, receives ops and copies while it is on; null: no log.
  explicit PlanBackend(Target target, EventLog* log = nullptr) : target_(std::move(target)), log_(log) {}

  const Target& target() const override { return target_; }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override;
  void set_scratch(std::byte*, int64_t) override {}
  void upload(void*, const void*, int64_t bytes) override { note(upload_name, bytes); }
  void download(void*, const void*, int64_t bytes) override { note(download_name, bytes); }
  void synchronize() override {}
  // RETURNS a queue for a GPU target, null for a CPU. The queue's allocate_host returns real memory, its
  // allocate_for_copies only an address.
  std::unique_ptr<SideQueue> make_side_queue() override;
  // RETURNS the warnings of the target's backend that follow from shapes alone.
  std::string take_warnings() override;

#define GPTRAIN_PLAN_RUN(Op)        \
  void run(const Op& op) override { \
    note(op);                       \
    look_for_warnings(op);          \
  }
  GPTRAIN_FOR_EACH_OP(GPTRAIN_PLAN_RUN)
#undef GPTRAIN_PLAN_RUN

  int64_t scratch_bytes() const { return scratch_bytes_; }  // largest scratch memory of an op so far

 private:
  template <typename Op>
  void note(const Op& op) {
    const Footprint cost = footprint(op, target_);
    scratch_bytes_ = std::max(scratch_bytes_, cost.scratch_bytes);
    if (log_ != nullptr && log_->on()) log_->add(op_event(op, cost));
  }
  void note(std::string_view copy, int64_t bytes);
  template <typename Op>
  void look_for_warnings(const Op&) {}
  void look_for_warnings(const AttentionForward& op) {
    look_for_unserved_documents(op);
    look_for_sparse_tiles(op);
  }
  void look_for_warnings(const AttentionBackward& op) { look_for_unserved_documents(op); }
  template <typename Op>
  void look_for_unserved_documents(const Op& op);
  // Warns of a pattern whose keys fill few of the tiles that kernels compute whole.
  void look_for_sparse_tiles(const AttentionForward& op);

  Target target_;
  EventLog* const log_;
  int64_t scratch_bytes_ = 0;
  std::set<std::string> warnings_;
  uintptr_t next_address_ = uintptr_t{1} << 46;
};

}  // namespace gptrain::ops
