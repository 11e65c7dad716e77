// Memory of the host harness's devices, accessible only to kernels and copies. Host code that reads or writes it, which
// would fail with a real device, gets a segmentation fault.
#pragma once

#include <cstddef>

namespace gptrain::simt {

// Allocates pages of zeros; throws std::bad_alloc.
void* take_pages(size_t bytes);
void give_back_pages(void* pages, size_t bytes);

// Makes the memory accessible to every thread while an object lives.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace gptrain::simt
