// Memory of the host harness's devices, which only kernels and copies can reach: host code that reads or writes it,
// as it must not on a machine with a device, is stopped by the system.
#pragma once

#include <cstddef>

namespace gptrain::simt {

// Pages of zeros; throws std::bad_alloc.
void* take_pages(size_t bytes);
void give_back_pages(void* pages, size_t bytes);

// While one lives, the memory can be reached, by every thread.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace gptrain::simt
