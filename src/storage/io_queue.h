// Transfers between files and memory that the system carries out while the caller goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace gptrain::inline storage {

// A range of a file and of memory. REQUIRES: with O_DIRECT the offset, the address and the number of bytes are
// multiples of page_bytes.
struct FileTransfer {
  int descriptor = -1;
  bool writes = false;
  int64_t offset = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
};
inline constexpr int64_t page_bytes = 4096;

struct EndedTransfer {
  uint64_t tag = 0;
  int error = 0;  // errno; 0: all bytes were moved
};

// One thread calls all methods. Transfers end in any order. The destructor waits for those under way.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  // Begins a transfer. `tag` comes back with its end. REQUIRES: fewer than `depth` transfers are under way, and the
  // memory stays valid until the transfer has ended.
  virtual void begin(const FileTransfer& transfer, uint64_t tag) = 0;
  // Says that most transfers will be of this memory, so that the system may look up its pages once, not for each
  // transfer. No effect if the system cannot. Call before the first transfer. REQUIRES: the memory begins at a multiple
  // of page_bytes and stays valid until the last transfer has ended.
  virtual void lend(const std::vector<std::span<std::byte>>& /*memory*/) {}
  // Waits for the end of a transfer. REQUIRES: one is under way.
  virtual EndedTransfer await() = 0;
  virtual std::string_view method() const = 0;  // "io_uring" or "threads"
};

// Returns a queue of io_uring with room for `depth` transfers; null if the system or this build has none.
std::unique_ptr<IoQueue> make_uring_queue(int depth);
// Returns a queue whose transfers are carried out by `depth` threads, at most 16. THROWS Error(machine) if they
// cannot be started.
std::unique_ptr<IoQueue> make_thread_queue(int depth);

// Moves bytes until the transfer is complete. Returns 0 or errno; EIO if the file ends before.
int transfer_all(FileTransfer transfer);

}  // namespace gptrain::storage
