// A device's memory, copies and stream.
//
// device/runtime.cpp is CUDA's. host/runtime.cpp is this machine's own memory, for kernels on the host harness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/error.h"
#include "base/units.h"
#include "ops/backend.h"
#include "ops/side_queue.h"
#include "stream.h"

namespace gptrain {

// Launches that were captured, to be queued again in one go: a CUDA graph. Operands and parameters are as they were.
class LaunchGraph {
 public:
  virtual ~LaunchGraph() = default;
  virtual void launch() = 0;
};

// As Backend says of the same functions.
class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual const Target& target() const = 0;
  virtual Stream stream() const = 0;
  virtual std::unique_ptr<DeviceMemory> allocate(int64_t bytes) = 0;
  virtual void upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const void* device, int64_t bytes) = 0;
  virtual void synchronize() = 0;

  // What is queued on the stream from now on is kept and not run; nothing else may be done with the runtime meanwhile.
  // Error (device) from either, or from what is queued meanwhile: something cannot be captured. The runtime is then as
  // before, once end_capture has been called.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<LaunchGraph> end_capture() = 0;
  virtual std::unique_ptr<SideQueue> make_side_queue() = 0;
};

// What SideQueue::allocate_host throws where the host cannot pin so many bytes.
inline Error cannot_pin(int64_t bytes) {
  return {ExitCode::device, "cannot pin {} of the host's memory", format_bytes(static_cast<double>(bytes))};
}

// Of device number `device`. Error (device): there is no such device, or it cannot be used.
std::unique_ptr<Runtime> make_runtime(int device);

}  // namespace gptrain
