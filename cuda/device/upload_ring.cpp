#include "device/upload_ring.h"

#include <algorithm>
#include <cstring>

#include "device/status.h"

namespace gptrain::inline cuda {

UploadRing::UploadRing() {
  void* memory = nullptr;
  check_cuda(cudaMallocHost(&memory, num_pieces * piece_bytes), "allocating pinned host memory");
  memory_ = static_cast<std::byte*>(memory);
  for (cudaEvent_t& event : left_)
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
}

UploadRing::~UploadRing() {
  for (const cudaEvent_t event : left_) cudaEventDestroy(event);
  cudaFreeHost(memory_);
}

void UploadRing::upload(void* device, const void* host, int64_t bytes, Stream stream,
                        const std::function<void(cudaEvent_t)>& wait) {
  for (int64_t done = 0; done < bytes; done += piece_bytes) {
    const int64_t slot = used_++ % num_pieces;
    const auto size = static_cast<size_t>(std::min(piece_bytes, bytes - done));
    std::byte* const piece = memory_ + slot * piece_bytes;
    const cudaEvent_t left = left_[static_cast<size_t>(slot)];
    wait(left);
    std::memcpy(piece, static_cast<const std::byte*>(host) + done, size);
    check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(device) + done, piece, size, cudaMemcpyHostToDevice, stream),
               "copying to the device");
    check_cuda(cudaEventRecord(left, stream), "marking an upload");
  }
}

}  // namespace gptrain::cuda
