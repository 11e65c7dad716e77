#include "data/prefetcher.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"

namespace gptrain::inline data {
namespace {

// Returns the bytes of the tokens, or of the targets, of a whole sequence that is read to take a part of it.
int64_t whole_sequence_bytes(const MicroBatchShape& shape) {
  return align_up(shape.sequence_length * static_cast<int64_t>(sizeof(int32_t)));
}

}  // namespace

struct Prefetcher::Impl {
  Impl(const Dataset& dataset_, const MicroBatchShape& shape_, int64_t first_sample_, int64_t stride_,
       std::byte* memory, PrefetchRing ring)
      : dataset(dataset_), shape(shape_), first_sample(first_sample_), stride(stride_), num_valid(ring.num_valid) {
    for (int i = 0; i < ring.depth; ++i) slots.push_back(MicroBatch::at(memory + i * shape.bytes(), shape));
    if (shape.context.size > 1) {
      std::byte* const whole = memory + ring.depth * shape.bytes();
      whole_tokens = reinterpret_cast<int32_t*>(whole);
      whole_targets = reinterpret_cast<int32_t*>(whole + whole_sequence_bytes(shape));
    }
    thread = start_thread("reads data", [this] { run(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    thread.join();
  }

  MicroBatch& slot(int64_t micro_batch) { return slots[static_cast<size_t>(micro_batch) % slots.size()]; }

  void run() {
    // On Linux this affects only this thread. Computing threads have priority; failure does not matter.
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
    try {
      for (int64_t k = 0; wait_for_room(k); ++k) {
        if (!fill(k)) return;
        {
          const std::lock_guard lock(mutex);
          num_filled = k + 1;
        }
        changed.notify_all();
      }
    } catch (...) {
      {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
      changed.notify_all();
    }
  }

  // Returns false if told to stop.
  bool wait_for_room(int64_t micro_batch) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return stopping || micro_batch < num_released + static_cast<int64_t>(slots.size()); });
    return !stopping;
  }

  // Copies a rank's rows of a sequence.
  static void copy_rows(const TokenRows& own, const int32_t* sequence, int32_t* to) {
    std::copy_n(sequence + own.first, own.first_length, to);
    std::copy_n(sequence + own.second, own.length - own.first_length, to + own.first_length);
  }

  bool fill(int64_t micro_batch) {
    const MicroBatch& target = slot(micro_batch);
    for (int64_t b = 0; b < shape.batch; ++b) {
      if (stopping) return false;
      target.sample_ids[b] = first_sample + micro_batch * stride + b;
      int32_t* const document_starts =
          target.document_starts != nullptr ? target.document_starts + b * shape.sequence_length : nullptr;
      const TokenRows own = shape.token_rows();
      const int64_t row = b * own.length;
      if (whole_tokens == nullptr) {
        dataset.read(target.sample_ids[b], target.tokens + row, target.targets + row, document_starts);
        continue;
      }
      dataset.read(target.sample_ids[b], whole_tokens, whole_targets, document_starts);
      copy_rows(own, whole_tokens, target.tokens + row);
      copy_rows(own, whole_targets, target.targets + row);
    }
    return true;
  }

  const MicroBatch& next() {
    std::unique_lock lock(mutex);
    num_released = std::max<int64_t>(num_taken + 1 - num_valid, 0);
    changed.notify_all();
    if (num_filled <= num_taken && !failure) {
      const auto start = std::chrono::steady_clock::now();
      changed.wait(lock, [&] { return num_filled > num_taken || failure; });
      waited_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    if (num_filled > num_taken) return slot(num_taken++);
    try {
      std::rethrow_exception(failure);
    } catch (const Error& error) {
      fault = error.what();
    }
    return blank();
  }

  // Returns a micro-batch without targets. REQUIRES: the reader has ended, so that nobody else writes to slots.
  const MicroBatch& blank() {
    const MicroBatch& target = slot(num_taken++);
    std::fill_n(target.tokens, shape.rows(), 0);
    std::fill_n(target.targets, shape.rows(), -1);
    std::fill_n(target.sample_ids, shape.batch, first_sample);
    if (target.document_starts != nullptr) std::fill_n(target.document_starts, shape.batch * shape.sequence_length, 0);
    return target;
  }

  const Dataset& dataset;
  const MicroBatchShape shape;
  const int64_t first_sample;
  const int64_t stride;
  const int64_t num_valid;
  std::vector<MicroBatch> slots;
  int32_t *whole_tokens = nullptr, *whole_targets = nullptr;  // null: the rank has whole sequences
  double waited_seconds = 0;
  std::string fault;

  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  int64_t num_filled = 0;
  int64_t num_taken = 0;     // returned by next()
  int64_t num_released = 0;  // num_taken minus the micro-batches still kept
  std::exception_ptr failure;
  std::atomic<bool> stopping = false;  // also read without the lock, between samples

  std::thread thread;  // last member: starts when the others exist
};

int64_t Prefetcher::bytes(const MicroBatchShape& shape, PrefetchRing ring) {
  return ring.depth * shape.bytes() + (shape.context.size > 1 ? 2 * whole_sequence_bytes(shape) : 0);
}

Prefetcher::Prefetcher(const Dataset& dataset, const MicroBatchShape& shape, int64_t first_sample, int64_t stride,
                       std::byte* memory, PrefetchRing ring)
    : impl_(std::make_unique<Impl>(dataset, shape, first_sample, stride, memory, ring)) {}

Prefetcher::~Prefetcher() = default;

const MicroBatch& Prefetcher::next() { return impl_->next(); }

const std::string& Prefetcher::fault() const { return impl_->fault; }

int64_t Prefetcher::num_valid() const { return impl_->num_valid; }

double Prefetcher::waited_seconds() const { return impl_->waited_seconds; }

}  // namespace gptrain::data
