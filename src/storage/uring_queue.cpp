#include <algorithm>
#include <cerrno>
#include <liburing.h>
#include <sys/uio.h>
#include <utility>
#include <vector>

#include "storage/io_queue.h"

namespace gptrain::inline storage {
namespace {

class UringQueue final : public IoQueue {
 public:
  UringQueue(io_uring ring, int depth) : ring_(ring), slots_(depth) {
    for (uint32_t i = 0; i < static_cast<uint32_t>(depth); ++i) free_.push_back(i);
  }
  ~UringQueue() override {
    while (free_.size() < slots_.size()) await();
    io_uring_queue_exit(&ring_);
  }

  void begin(const FileTransfer& transfer, uint64_t tag) override {
    const uint32_t number = free_.back();
    free_.pop_back();
    slots_[number] = {transfer, tag};
    submit(number);
  }

  void lend(const std::vector<std::span<std::byte>>& memory) override {
    constexpr size_t most_bytes = size_t{1} << 30;  // size limit of a buffer
    std::vector<iovec> buffers;
    for (const std::span<std::byte> range : memory)
      for (size_t at = 0; at < range.size(); at += most_bytes)
        buffers.push_back({range.data() + at, std::min(most_bytes, range.size() - at)});
    // The system refuses memory above the limit of locked pages.
    if (!buffers.empty() &&
        io_uring_register_buffers(&ring_, buffers.data(), static_cast<unsigned>(buffers.size())) == 0)
      buffers_ = std::move(buffers);
  }

  EndedTransfer await() override {
    while (!failed_.empty()) {
      const auto [number, error] = failed_.back();
      failed_.pop_back();
      return end(number, error);
    }
    while (true) {
      io_uring_cqe* event = nullptr;
      const int waited = io_uring_wait_cqe(&ring_, &event);
      if (waited == -EINTR || waited == -EAGAIN) continue;
      const auto number = static_cast<uint32_t>(io_uring_cqe_get_data64(event));
      const int moved = event->res;
      io_uring_cqe_seen(&ring_, event);
      FileTransfer& rest = slots_[number].transfer;
      if (moved == -EINTR || moved == -EAGAIN) {
        submit(number);
      } else if (moved <= 0) {
        return end(number, moved < 0 ? -moved : EIO);
      } else if (moved == rest.bytes) {
        return end(number, 0);
      } else {
        rest.data += moved;
        rest.offset += moved;
        rest.bytes -= moved;
        submit(number);
      }
      if (!failed_.empty()) {
        const auto [slot, error] = failed_.back();
        failed_.pop_back();
        return end(slot, error);
      }
    }
  }

  std::string_view method() const override { return "io_uring"; }

 private:
  struct Slot {
    FileTransfer transfer;
    uint64_t tag = 0;
  };

  void submit(uint32_t number) {
    const FileTransfer& transfer = slots_[number].transfer;
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    const auto bytes = static_cast<unsigned>(transfer.bytes);
    const auto offset = static_cast<uint64_t>(transfer.offset);
    const int buffer = buffer_of(transfer);
    if (buffer >= 0 && transfer.writes) {
      io_uring_prep_write_fixed(entry, transfer.descriptor, transfer.data, bytes, offset, buffer);
    } else if (buffer >= 0) {
      io_uring_prep_read_fixed(entry, transfer.descriptor, transfer.data, bytes, offset, buffer);
    } else if (transfer.writes) {
      io_uring_prep_write(entry, transfer.descriptor, transfer.data, bytes, offset);
    } else {
      io_uring_prep_read(entry, transfer.descriptor, transfer.data, bytes, offset);
    }
    io_uring_sqe_set_data64(entry, number);
    int submitted = 0;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
    if (submitted < 0) failed_.emplace_back(number, -submitted);
  }

  // Returns the number of the lent buffer that has all of the transfer's memory; negative: none has.
  int buffer_of(const FileTransfer& transfer) const {
    const auto found = std::find_if(buffers_.begin(), buffers_.end(), [&](const iovec& buffer) {
      const auto at = reinterpret_cast<uintptr_t>(transfer.data) - reinterpret_cast<uintptr_t>(buffer.iov_base);
      return at < buffer.iov_len && static_cast<size_t>(transfer.bytes) <= buffer.iov_len - at;
    });
    return found == buffers_.end() ? -1 : static_cast<int>(found - buffers_.begin());
  }

  EndedTransfer end(uint32_t number, int error) {
    free_.push_back(number);
    return {slots_[number].tag, error};
  }

  io_uring ring_;
  std::vector<iovec> buffers_;  // lent
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;                    // slots without a transfer
  std::vector<std::pair<uint32_t, int>> failed_;  // slots whose transfer the system did not take, and errno
};

}  // namespace

std::unique_ptr<IoQueue> make_uring_queue(int depth) {
  io_uring ring{};
  if (io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0) != 0) return nullptr;
  return std::make_unique<UringQueue>(ring, depth);
}

}  // namespace gptrain::storage
