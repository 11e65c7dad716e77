// An allocator for large tables that are read at random places.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <sys/mman.h>

namespace gptrain::inline data {

// Allocates from huge pages where the system has them: a look-up in small pages waits for the address more than for the
// entry.
template <typename T>
struct HugePages {
  using value_type = T;
  HugePages() = default;

  T* allocate(size_t count) {
    constexpr size_t page_bytes = size_t{1} << 21;
    const size_t bytes = (count * sizeof(T) + page_bytes - 1) / page_bytes * page_bytes;
    void* const memory = std::aligned_alloc(page_bytes, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    ::madvise(memory, bytes, MADV_HUGEPAGE);  // fails where there are none
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { std::free(memory); }
  bool operator==(const HugePages&) const = default;
};

}  // namespace gptrain::data
