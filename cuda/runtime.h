// A device's memory, copies and stream.
//
// device/runtime.cpp implements it with CUDA. host/runtime.cpp uses this machine's memory, for the host harness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/error.h"
#include "base/units.h"
#include "ops/backend.h"
#include "ops/side_queue.h"
#include "stream.h"

namespace gptrain::inline cuda {

// Captured launches that can be queued again together: a CUDA graph. Operands and parameters stay as captured.
class LaunchGraph {
 public:
  virtual ~LaunchGraph() = default;
  virtual void launch() = 0;
};

// Implements the functions of Backend with the same names.
class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual const Target& target() const = 0;
  virtual Stream stream() const = 0;
  virtual std::unique_ptr<DeviceMemory> allocate(int64_t bytes) = 0;
  virtual int64_t free_bytes() const = 0;
  virtual void upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const void* device, int64_t bytes) = 0;
  virtual void synchronize() = 0;

  // Captures work queued on the stream from now on instead of running it; no other use of the runtime is allowed until
  // end_capture. If something cannot be captured, either function or the queueing in between throws Error(device);
  // after end_capture the runtime is usable again.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<LaunchGraph> end_capture() = 0;
  virtual std::unique_ptr<SideQueue> make_side_queue() = 0;
};

// Returns the Error that SideQueue::allocate_host throws if the host cannot pin that much memory.
inline Error cannot_pin(int64_t bytes) {
  return {ExitCode::machine, "cannot pin {} of the host's memory", format_bytes(static_cast<double>(bytes))};
}

// Opens device number `device`. Throws Error(machine) if it does not exist or is too old, Error(device) if it cannot be
// used.
std::unique_ptr<Runtime> make_runtime(int device);

}  // namespace gptrain::cuda
