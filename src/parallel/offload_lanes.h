// The copy lanes of offloaded records: one to the host, one back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/backend.h"
#include "ops/side_queue.h"
#include "parallel/program.h"

namespace gptrain::inline parallel {

// Each lane is a queue of the device that runs beside the ops. If the device's memory is host memory, there are no
// queues, and a copy ends before the call that begins it returns.
class OffloadLanes {
 public:
  // Borrows the backend. REQUIRES: destroyed before the memory that is copied.
  explicit OffloadLanes(Backend& backend);

  // Begins or awaits a copy, as action.kind says. A copy begins after the ops called so far. Ops called after it was
  // awaited run after it; the host does not wait. THROWS std::logic_error if too many copies are pending or the awaited
  // one has not begun.
  void play(const Action& action, const std::vector<Program::RecordPart>& record);

  // Allocates host memory for offloaded records. THROWS Error, which names offload_key, if there is not enough.
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes);

 private:
  struct Pending {
    int32_t unit, micro_batch;
    int mark;
  };
  struct Lane {
    std::unique_ptr<SideQueue> queue;  // null if the device's memory is host memory
    std::vector<Pending> pending = {};
    int next_mark = 0;
  };

  static void begin(Lane& lane, const Action& action, const std::function<void()>& copies);
  static void await(Lane& lane, const Action& action);
  void copy_to_host(const std::vector<Program::RecordPart>& record);
  void copy_to_device(const std::vector<Program::RecordPart>& record);

  Backend& backend_;
  Lane to_host_, to_device_;
};

}  // namespace gptrain::parallel
