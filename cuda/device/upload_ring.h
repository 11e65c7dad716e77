// Pinned memory through which pageable host memory is copied to the device without waiting.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>
#include <functional>

#include "stream.h"

namespace gptrain::inline cuda {

// Uploads to the device that is current at construction. A call copies to the ring and returns. The call waits,
// by `wait`, only if the next piece of the ring has not reached the device yet.
class UploadRing {
 public:
  UploadRing();
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  void upload(void* device, const void* host, int64_t bytes, Stream stream,
              const std::function<void(cudaEvent_t)>& wait);

 private:
  // 8 MiB in total. A step uploads one or two pieces, with ZeRO 1 and 2 one per unit.
  static constexpr int64_t num_pieces = 128;
  static constexpr int64_t piece_bytes = int64_t{64} << 10;

  std::byte* memory_ = nullptr;
  std::array<cudaEvent_t, num_pieces> left_{};  // one per piece: set when the piece has left the ring
  int64_t used_ = 0;
};

}  // namespace gptrain::cuda
