// The copy lanes of what offloaded units save: one to the host, one back.
#pragma once

#include <cstdint>
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

  // Begin after the ops that were called so far. A copy back begins after its own to the host was awaited.
  void offload(int32_t unit, int32_t micro_batch, const std::vector<Program::RecordPart>& record);
  void fetch(int32_t unit, int32_t micro_batch, const std::vector<Program::RecordPart>& record);
  // Ops that are called from now on run after the copy.
  void await_offloaded(int32_t unit, int32_t micro_batch) { await(to_host_, unit, micro_batch); }
  void await_fetched(int32_t unit, int32_t micro_batch) { await(to_device_, unit, micro_batch); }

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

  template <typename Copy>
  static void begin(Lane& lane, int32_t unit, int32_t micro_batch, const Copy& copy);
  static void await(Lane& lane, int32_t unit, int32_t micro_batch);

  Backend& backend_;
  Lane to_host_, to_device_;
};

}  // namespace gptrain
