// Files that hold pieces of a run's state while the run goes on. They are no checkpoint: they have no names and vanish
// with the process.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "storage/io_queue.h"
#include "storage/stored_files.h"

namespace gptrain::inline storage {

struct WorkingFilesOptions {
  std::vector<std::filesystem::path> folders;  // one on each drive; blocks go to all of them in turn
  std::string owner = "rank-0";                // part of the files' names in messages
  int depth = 16;                              // most transfers under way
  int64_t transfer_bytes = int64_t{1} << 20;   // a multiple of page_bytes that divides WorkingFiles::block_bytes
  bool may_use_uring = true;
};

// One thread serves reads in the order in which they are asked for, and writes in theirs, but a read that comes after
// writes lets others pass until these are over. While reads and writes wait, it begins transfers of both in turn. Many
// transfers are under way at once, and bypass the page cache (O_DIRECT). Each block has a checksum (CRC-32C) in memory,
// which is compared when the block is read. All methods may be called by any thread.
class WorkingFiles {
 public:
  static constexpr int64_t block_bytes = StoredFiles::block_bytes;

  // Reserves the files' space, one file in each folder, and starts the thread. THROWS Error(checkpoint) if a folder is
  // missing, cannot be written, lacks the space, or does not allow O_DIRECT; Error(machine) if a thread cannot start.
  WorkingFiles(const WorkingFilesOptions& options, std::vector<StoredPiece> pieces);
  // Waits for all reads and writes that were begun.
  ~WorkingFiles();
  WorkingFiles(const WorkingFiles&) = delete;
  WorkingFiles& operator=(const WorkingFiles&) = delete;

  // As IoQueue::lend.
  void lend(const std::vector<std::span<std::byte>>& memory);

  using Ticket = int64_t;
  static constexpr Ticket done = 0;  // ticket of a piece without bytes
  struct Times {
    double start = 0, end = 0;  // steady_seconds
  };

  // Begin to read or write a piece. The memory begins at a multiple of page_bytes and stays valid until `wait` has
  // returned. REQUIRES: no write of the piece is under way, and for a write no read; a piece is written before it is
  // read. THROWS Error(checkpoint) if any transfer so far has failed.
  // `after`: the read begins once these tickets are over, which may be of writes of the piece.
  Ticket begin_read(size_t piece, std::byte* to, std::vector<Ticket> after = {});
  Ticket begin_write(size_t piece, const std::byte* from);
  // Returns the ticket of a later write of the piece, so that reads can be asked for that come after it. REQUIRES:
  // begin_reserved or give_up is called, so that these reads end.
  Ticket reserve_write(size_t piece);
  // Begins a reserved write as begin_write does; no effect for a piece without bytes.
  void begin_reserved(Ticket ticket, const std::byte* from);
  // Begins no more transfers. All who wait THROW `failure`, once no transfer is under way.
  void give_up(std::exception_ptr failure);
  // Waits for the ticket and returns its times; zeros if it is `done` or was awaited before. THROWS Error(checkpoint),
  // which names file and piece, if any transfer so far has failed or has read a block with another checksum than was
  // written.
  Times wait(Ticket ticket);
  // Returns true if `wait` would not wait for the piece: it is over, or a transfer has failed. After a failure `wait`
  // may still block until no transfer is under way; then it throws.
  bool is_over(Ticket ticket);
  void read(size_t piece, std::byte* to) { wait(begin_read(piece, to)); }
  void write(size_t piece, const std::byte* from) { wait(begin_write(piece, from)); }

  std::string_view method() const { return queue_->method(); }  // "io_uring" or "threads"
  const std::vector<StoredPiece>& pieces() const { return files_.pieces(); }
  // As StoredFiles::clone.
  std::unique_ptr<StoredFiles> clone(size_t num_pieces) const { return files_.clone(num_pieces); }

 private:
  struct Job {
    Ticket ticket = done;
    size_t piece = 0;
    bool writes = false;
    std::byte* data = nullptr;
    std::vector<Ticket> after = {};  // tickets that were not over at the last look
    int64_t begun = 0;               // bytes whose transfers have begun
    int64_t under_way = 0;           // transfers
    std::vector<int64_t> left = {};  // by block: bytes that have not arrived
    Times times = {};
    bool over = false;
  };

  Ticket begin(Job job, bool is_asked);
  void work();
  bool may_begin(Job& job) const;
  Job* first_of(bool writes) const;
  Job* next_job();
  bool is_ending();
  void begin_transfer(Job& job);
  void end_transfer(const EndedTransfer& ended);
  void end_failure();
  void throw_failure(std::unique_lock<std::mutex>& lock);

  const int64_t transfer_bytes_;
  const size_t depth_;
  StoredFiles files_;
  std::unique_ptr<IoQueue> queue_;
  // Transfers under way by tag, used by the thread only.
  struct UnderWay {
    Job* job = nullptr;
    size_t block = 0;
    int64_t bytes = 0;
  };
  std::vector<UnderWay> under_way_;
  std::vector<uint64_t> free_tags_;
  bool reads_next_ = true;

  std::mutex mutex_;  // guards the members below
  std::condition_variable asked_, ended_;
  std::unordered_map<Ticket, std::unique_ptr<Job>> jobs_;  // not awaited yet
  std::array<std::deque<Job*>, 2> waiting_;                // reads, writes: with transfers that have not begun
  Ticket last_ = done;
  std::exception_ptr failure_;
  bool failure_is_over_ = false;  // no transfer is under way since
  bool ending_ = false;
  std::thread thread_;  // last: uses the above
};

}  // namespace gptrain::storage
