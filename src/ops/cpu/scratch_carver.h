// Cuts scratch memory into buffers; with no memory it only counts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gptrain {

class ScratchCarver {
 public:
  // Any address: the first buffer starts at the next multiple of the alignment.
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

  // Memory that holds what was taken, wherever it starts.
  int64_t bytes() const { return bytes_ + alignment; }

 private:
  static constexpr int64_t alignment = 64;  // a cache line

  std::byte* next_;
  int64_t bytes_ = 0;
};

}  // namespace gptrain
