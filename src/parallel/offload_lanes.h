// The copy lanes of what offloaded units save: one to the host, one back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/backend.h"
#include "ops/side_queue.h"
#include "parallel/program.h"

namespace gptrain {

// Each lane is a queue of the device beside the ops. Where the device's memory is the host's there is none, and a copy is
// over when the call that begins it returns.
class OffloadLanes {
 public:
  // Borrows the backend. It goes before the memory that is copied.
  explicit OffloadLanes(Backend& backend);

  // Begins a copy, which comes after the ops that were called so far, or waits for it: ops that are called from now on run
  // after it.
  void play(const Action& action, const std::vector<Program::RecordPart>& record);

  // Memory of the host for what is offloaded.
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes);

 private:
  struct Pending {
    int32_t unit, micro_batch;
    int mark;
  };
  struct Lane {
    std::unique_ptr<SideQueue> queue;  // null: there is none
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

}  // namespace gptrain
