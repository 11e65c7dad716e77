// Pinned memory through which what lies anywhere in host memory goes to the device, so that nobody waits for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>
#include <functional>

#include "stream.h"

namespace gptrain {

// Of the device that is current when it is made, where all of its uploads go. A call copies to the ring and returns; it
// waits, by `wait`, only for a piece that has not left the ring after all the others were used.
class UploadRing {
 public:
  UploadRing();
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  void upload(void* device, const void* host, int64_t bytes, Stream stream,
              const std::function<void(cudaEvent_t)>& wait);

 private:
  // 8 MiB in all. A step uploads a piece or two, and with ZeRO 1 and 2 one for each unit.
  static constexpr int64_t num_pieces = 128;
  static constexpr int64_t piece_bytes = int64_t{64} << 10;

  std::byte* memory_ = nullptr;
  std::array<cudaEvent_t, num_pieces> left_{};  // the ring
  int64_t used_ = 0;
};

}  // namespace gptrain
