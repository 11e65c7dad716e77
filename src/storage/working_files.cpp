#include "storage/working_files.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/event.h"
#include "base/thread.h"

namespace gptrain::inline storage {

WorkingFiles::WorkingFiles(const WorkingFilesOptions& options, std::vector<StoredPiece> pieces)
    : transfer_bytes_(options.transfer_bytes),
      depth_(options.depth),
      files_({.folders = options.folders, .owner = options.owner}, std::move(pieces)),
      under_way_(depth_) {
  for (uint64_t tag = 0; tag < depth_; ++tag) free_tags_.push_back(tag);
  if (options.may_use_uring) queue_ = make_uring_queue(options.depth);
  if (queue_ == nullptr) queue_ = make_thread_queue(options.depth);
  thread_ = start_thread("serves working files", [this] { work(); });
}

WorkingFiles::~WorkingFiles() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    asked_.notify_all();
  }
  thread_.join();
}

void WorkingFiles::lend(const std::vector<std::span<std::byte>>& memory) {
  const std::lock_guard lock(mutex_);  // the thread sees it with the first job
  queue_->lend(memory);
}

WorkingFiles::Ticket WorkingFiles::begin_read(size_t piece, std::byte* to) { return begin(piece, to, false); }

WorkingFiles::Ticket WorkingFiles::begin_write(size_t piece, const std::byte* from) {
  return begin(piece, const_cast<std::byte*>(from), true);
}

WorkingFiles::Ticket WorkingFiles::begin(size_t piece, std::byte* data, bool writes) {
  const size_t num_blocks = files_.num_blocks(piece);
  if (num_blocks == 0) return done;
  auto job = std::make_unique<Job>();
  job->piece = piece;
  job->writes = writes;
  job->data = data;
  for (size_t block = 0; block < num_blocks; ++block) job->left.push_back(files_.block(piece, block).bytes);
  std::unique_lock lock(mutex_);
  throw_failure(lock);
  job->ticket = ++last_;
  waiting_[writes ? 1 : 0].push_back(job.get());
  jobs_.emplace(last_, std::move(job));
  asked_.notify_one();
  return last_;
}

WorkingFiles::Times WorkingFiles::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  auto found = jobs_.find(ticket);
  // Another thread may await the same ticket and remove the job.
  ended_.wait(lock, [&] {
    found = jobs_.find(ticket);
    return failure_ || found == jobs_.end() || found->second->over;
  });
  throw_failure(lock);
  if (found == jobs_.end()) return {};
  const Times times = found->second->times;
  jobs_.erase(found);
  return times;
}

bool WorkingFiles::is_over(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(ticket);
  return found == jobs_.end() || found->second->over || failure_ != nullptr;
}

// Throws the failure, if there is one, once no transfer reads or writes memory, which its owner may then free.
void WorkingFiles::throw_failure(std::unique_lock<std::mutex>& lock) {
  if (!failure_) return;
  ended_.wait(lock, [this] { return failure_is_over_; });
  std::rethrow_exception(failure_);
}

void WorkingFiles::end_failure() {
  const std::lock_guard lock(mutex_);
  if (!failure_ || failure_is_over_) return;
  failure_is_over_ = true;
  ended_.notify_all();
}

void WorkingFiles::fail(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
  for (std::deque<Job*>& jobs : waiting_) jobs.clear();
  ended_.notify_all();
}

// Returns a job that has transfers to begin, reads and writes in turn; null: none.
WorkingFiles::Job* WorkingFiles::next_job() {
  std::unique_lock lock(mutex_);
  if (free_tags_.size() == depth_)
    asked_.wait(lock, [this] { return ending_ || !waiting_[0].empty() || !waiting_[1].empty(); });
  for (int tries = 0; tries < 2; ++tries) {
    const std::deque<Job*>& jobs = waiting_[reads_next_ ? 0 : 1];
    reads_next_ = !reads_next_;
    if (!jobs.empty()) return jobs.front();
  }
  return nullptr;
}

void WorkingFiles::work() {
  while (true) {
    if (free_tags_.size() == depth_) end_failure();
    try {
      Job* const job = free_tags_.empty() ? nullptr : next_job();
      if (job != nullptr) {
        begin_transfer(*job);
      } else if (free_tags_.size() < depth_) {
        end_transfer(queue_->await());
      } else {
        return;
      }
    } catch (...) {
      fail(std::current_exception());
    }
  }
}

void WorkingFiles::begin_transfer(Job& job) {
  const auto number = static_cast<size_t>(job.begun / block_bytes);
  StoredFiles::Block& block = files_.block(job.piece, number);
  const int64_t in_block = job.begun % block_bytes;
  if (job.begun == 0) job.times.start = steady_seconds();
  if (in_block == 0 && job.writes) block.crc = crc32c(job.data + job.begun, block.bytes);
  const int64_t bytes = std::min(transfer_bytes_, block.bytes - in_block);
  const uint64_t tag = free_tags_.back();
  free_tags_.pop_back();
  under_way_[tag] = {&job, number, bytes};
  ++job.under_way;
  std::byte* const data = job.data + job.begun;
  job.begun += bytes;
  if (job.begun == pieces()[job.piece].bytes) {
    const std::lock_guard lock(mutex_);
    std::erase(waiting_[job.writes ? 1 : 0], &job);
  }
  queue_->begin({.descriptor = files_.descriptor(block),
                 .writes = job.writes,
                 .offset = block.offset + in_block,
                 .data = data,
                 .bytes = bytes},
                tag);
}

void WorkingFiles::end_transfer(const EndedTransfer& ended) {
  const auto [job, block, bytes] = under_way_[ended.tag];
  free_tags_.push_back(ended.tag);
  --job->under_way;
  if (ended.error != 0)
    throw Error(ExitCode::checkpoint, "cannot {} {}: {}", job->writes ? "write" : "read",
                files_.text_of(job->piece, block), std::strerror(ended.error));
  job->left[block] -= bytes;
  if (job->left[block] == 0 && !job->writes)
    files_.check(job->piece, block, job->data + static_cast<int64_t>(block) * block_bytes);
  if (job->begun < pieces()[job->piece].bytes || job->under_way > 0) return;
  const std::lock_guard lock(mutex_);
  job->times.end = steady_seconds();
  job->over = true;
  ended_.notify_all();
}

}  // namespace gptrain::storage
