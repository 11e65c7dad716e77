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

WorkingFiles::Ticket WorkingFiles::begin_read(size_t piece, std::byte* to, std::vector<Ticket> after) {
  return begin({.piece = piece, .writes = false, .data = to, .after = std::move(after)}, true);
}

WorkingFiles::Ticket WorkingFiles::begin_write(size_t piece, const std::byte* from) {
  return begin({.piece = piece, .writes = true, .data = const_cast<std::byte*>(from)}, true);
}

WorkingFiles::Ticket WorkingFiles::reserve_write(size_t piece) {
  return begin({.piece = piece, .writes = true}, false);
}

void WorkingFiles::begin_reserved(Ticket ticket, const std::byte* from) {
  if (ticket == done) return;
  std::unique_lock lock(mutex_);
  throw_failure(lock);
  Job* const job = jobs_.at(ticket).get();
  job->data = const_cast<std::byte*>(from);
  waiting_[1].push_back(job);
  asked_.notify_one();
}

// `is_asked`: the transfers may begin; otherwise the ticket is only reserved.
WorkingFiles::Ticket WorkingFiles::begin(Job job, bool is_asked) {
  const size_t num_blocks = files_.num_blocks(job.piece);
  if (num_blocks == 0) return done;
  for (size_t block = 0; block < num_blocks; ++block) job.left.push_back(files_.block(job.piece, block).bytes);
  std::unique_lock lock(mutex_);
  throw_failure(lock);
  job.ticket = ++last_;
  const auto added = jobs_.emplace(last_, std::make_unique<Job>(std::move(job))).first;
  if (!is_asked) return last_;
  waiting_[added->second->writes ? 1 : 0].push_back(added->second.get());
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

void WorkingFiles::give_up(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
  for (std::deque<Job*>& jobs : waiting_) jobs.clear();
  ended_.notify_all();
  asked_.notify_one();
}

// Returns whether the transfers of a job that waits may begin. REQUIRES: mutex_ is held.
bool WorkingFiles::may_begin(Job& job) const {
  const auto is_over = [&](Ticket ticket) {
    const auto found = jobs_.find(ticket);
    return found == jobs_.end() || found->second->over;
  };
  job.after.erase(std::remove_if(job.after.begin(), job.after.end(), is_over), job.after.end());
  return job.after.empty();
}

// Returns the first of the waiting reads or writes whose transfers may begin; null: none. REQUIRES: mutex_ is held.
WorkingFiles::Job* WorkingFiles::first_of(bool writes) const {
  const std::deque<Job*>& jobs = waiting_[writes ? 1 : 0];
  const auto found = std::find_if(jobs.begin(), jobs.end(), [&](Job* job) { return may_begin(*job); });
  return found == jobs.end() ? nullptr : *found;
}

// Returns a job that has transfers to begin, reads and writes in turn; null: none.
WorkingFiles::Job* WorkingFiles::next_job() {
  std::unique_lock lock(mutex_);
  if (free_tags_.size() == depth_)
    asked_.wait(lock, [this] {
      return ending_ || (failure_ && !failure_is_over_) || first_of(false) != nullptr || first_of(true) != nullptr;
    });
  for (int tries = 0; tries < 2; ++tries) {
    Job* const job = first_of(!reads_next_);
    reads_next_ = !reads_next_;
    if (job != nullptr) return job;
  }
  return nullptr;
}

bool WorkingFiles::is_ending() {
  const std::lock_guard lock(mutex_);
  return ending_;
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
      } else if (is_ending()) {
        return;
      }
    } catch (...) {
      give_up(std::current_exception());
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
