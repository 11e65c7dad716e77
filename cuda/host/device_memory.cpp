#include "host/device_memory.h"

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <sys/mman.h>

namespace gptrain::simt {
namespace {

struct Pages {
  std::mutex mutex;  // guards the members below
  std::map<void*, size_t> taken;
  int accesses = 0;
};

Pages& all_pages() {
  static auto& pages = *new Pages;
  return pages;
}

void protect(const Pages& pages, int access) {
  for (const auto& [data, bytes] : pages.taken) mprotect(data, bytes, access);
}

}  // namespace

void* take_pages(size_t bytes) {
  Pages& pages = all_pages();
  const std::lock_guard lock(pages.mutex);
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  // A hint: access to all pages is revoked and restored with every kernel, which is faster for large pages.
  madvise(data, bytes, MADV_HUGEPAGE);
  // A device does not clear memory. All bits set is NaN in every float type.
  std::memset(data, 0xff, bytes);
  if (pages.accesses == 0) mprotect(data, bytes, PROT_NONE);
  pages.taken[data] = bytes;
  return data;
}

void give_back_pages(void* data, size_t bytes) {
  Pages& pages = all_pages();
  const std::lock_guard lock(pages.mutex);
  pages.taken.erase(data);
  munmap(data, bytes);
}

DeviceAccess::DeviceAccess() {
  Pages& pages = all_pages();
  const std::lock_guard lock(pages.mutex);
  if (pages.accesses++ == 0) protect(pages, PROT_READ | PROT_WRITE);
}

DeviceAccess::~DeviceAccess() {
  Pages& pages = all_pages();
  const std::lock_guard lock(pages.mutex);
  if (--pages.accesses == 0) protect(pages, PROT_NONE);
}

}  // namespace gptrain::simt
