// Cuts scratch memory into buffers. Without memory it only counts bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gptrain::inline ops {

class ScratchCarver {
 public:
  // `memory` may have any alignment; the first buffer starts at the next multiple of `alignment`.
  explicit ScratchCarver(std::byte* memory) : next_(memory) {
    const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) % alignment);
    if (misaligned != 0) next_ += alignment - misaligned;
  }

  template <typename T>
  T* take(int64_t count) {
    const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + alignment - 1) / alignment * alignment;
    bytes_ += bytes;
    if (next_ == nullptr) return nullptr;
    std::byte* const start = next_;
    next_ += bytes;
    return reinterpret_cast<T*>(start);
  }

  // RETURNS the bytes of memory that hold all buffers taken so far, for memory of any alignment.
  int64_t bytes() const { return bytes_ + alignment; }

 private:
  static constexpr int64_t alignment = 64;  // a cache line

  std::byte* next_;
  int64_t bytes_ = 0;
};

}  // namespace gptrain::ops
