#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "storage/io_queue.h"

namespace gptrain::inline storage {

int transfer_all(FileTransfer transfer) {
  while (transfer.bytes > 0) {
    const auto bytes = static_cast<size_t>(transfer.bytes);
    const ssize_t moved = transfer.writes ? pwrite(transfer.descriptor, transfer.data, bytes, transfer.offset)
                                          : pread(transfer.descriptor, transfer.data, bytes, transfer.offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return EIO;
    transfer.data += moved;
    transfer.offset += moved;
    transfer.bytes -= moved;
  }
  return 0;
}

namespace {

class ThreadQueue final : public IoQueue {
 public:
  explicit ThreadQueue(int depth) {
    constexpr int most_threads = 16;
    try {
      while (std::ssize(threads_) < std::min(depth, most_threads))
        threads_.push_back(start_thread("reads and writes working files", [this] { work(); }));
    } catch (...) {
      end();
      throw;
    }
  }
  ~ThreadQueue() override { end(); }

  void begin(const FileTransfer& transfer, uint64_t tag) override {
    const std::lock_guard lock(mutex_);
    waiting_.emplace_back(transfer, tag);
    begun_.notify_one();
  }

  EndedTransfer await() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return !over_.empty(); });
    const EndedTransfer first = over_.front();
    over_.pop_front();
    return first;
  }

  std::string_view method() const override { return "threads"; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      begun_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const auto [transfer, tag] = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const int error = transfer_all(transfer);
      lock.lock();
      over_.push_back({tag, error});
      ended_.notify_one();
    }
  }

  void end() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      begun_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  std::mutex mutex_;  // guards all but threads_
  std::condition_variable begun_, ended_;
  std::deque<std::pair<FileTransfer, uint64_t>> waiting_;
  std::deque<EndedTransfer> over_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoQueue> make_thread_queue(int depth) { return std::make_unique<ThreadQueue>(depth); }

}  // namespace gptrain::storage
