#include "count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

// In a file of its own: a compiler that sees new together with the free() in delete warns that they do not match.
namespace {

std::atomic<int64_t> g_num_allocations = 0;

void* counted_malloc(std::size_t bytes) {
  ++g_num_allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

}  // namespace

int64_t num_allocations() { return g_num_allocations; }

void* operator new(std::size_t bytes) {
  if (void* memory = counted_malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted_malloc(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
