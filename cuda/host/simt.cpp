// Compiled without ThreadSanitizer, which thus sees the kernels' memory accesses but none of this file's.
#include "host/simt.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "host/device_memory.h"

#if defined(GPTRAIN_TSAN)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace gptrain::simt {
namespace {

namespace context = boost::context;

constexpr size_t stack_bytes = 256 << 10;
// Limits of a block on the smallest supported device.
constexpr uint64_t most_threads = 1024;
constexpr size_t most_shared_bytes = 99 << 10;

// Tells the sanitizers about every switch between fibers.
class SanitizerFiber {
 public:
#if defined(GPTRAIN_TSAN)
  SanitizerFiber() : tsan_(__tsan_create_fiber(0)) {}
  ~SanitizerFiber() { __tsan_destroy_fiber(tsan_); }
#else
  SanitizerFiber() = default;
#endif
  SanitizerFiber(const SanitizerFiber&) = delete;
  SanitizerFiber& operator=(const SanitizerFiber&) = delete;

  // Boost enters a fiber while creating it. The scheduler's fake stack is put away meanwhile, so that frames of that
  // visit are not taken for the scheduler's.
  template <class Make>
  void make(Make make_fiber) {
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    void* none = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack_bottom, stack_size);
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom_, &scheduler_size_);
    __sanitizer_start_switch_fiber(&none, scheduler_bottom_, scheduler_size_);
#endif
    make_fiber();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  // Switches from the scheduler to this fiber. `entered` must be the first call on the fiber.
  void enter() {
#if defined(GPTRAIN_TSAN)
    scheduler_tsan_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&scheduler_stack_, stack_bottom, stack_size);
#endif
  }
  void entered() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(own_stack_, &scheduler_bottom_, &scheduler_size_);
#endif
  }
  // Switches back to the scheduler, for good if `ends`.
  void leave([[maybe_unused]] bool ends) {
#if defined(GPTRAIN_TSAN)
    __tsan_switch_to_fiber(scheduler_tsan_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(ends ? nullptr : &own_stack_, scheduler_bottom_, scheduler_size_);
#endif
  }
  void left() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_stack_, nullptr, nullptr);
#endif
  }

  const void* stack_bottom = nullptr;
  size_t stack_size = 0;

 private:
#if defined(GPTRAIN_TSAN)
  void* tsan_;
  void* scheduler_tsan_ = nullptr;
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* scheduler_stack_ = nullptr;
  void* own_stack_ = nullptr;
  const void* scheduler_bottom_ = nullptr;
  size_t scheduler_size_ = 0;
#endif
};

// A stack that its Track owns: the fiber does not free it.
struct BorrowedStack {
  void deallocate(context::stack_context&) const {}
};

// A fiber on which CUDA threads run one after another. A grid has thousands of threads, and creating a stack, or its
// sanitizer state, takes longer than most of them run.
class Track {
 public:
  explicit Track(context::stack_context stack) : stack_(stack) {
    sanitizer_.stack_bottom = static_cast<std::byte*>(stack.sp) - stack.size;
    sanitizer_.stack_size = stack.size;
    sanitizer_.make([this] {
      other_ =
          context::fiber(std::allocator_arg, context::preallocated(stack_.sp, stack_.size, stack_), BorrowedStack(),
                         [this](context::fiber&& scheduler) { return run(std::move(scheduler)); });
    });
  }
  Track(const Track&) = delete;
  Track& operator=(const Track&) = delete;

  // Sets the function that the next resume() starts; none: the fiber ends.
  void set_body(std::function<void()> body) { body_ = std::move(body); }
  // Called by the scheduler: runs the body until it pauses or ends.
  void resume() {
    sanitizer_.enter();
    other_ = std::move(other_).resume();
    sanitizer_.left();
  }
  // Called by the body: returns to the scheduler until resumed.
  void pause() {
    sanitizer_.leave(false);
    other_ = std::move(other_).resume();
    sanitizer_.entered();
  }

  const context::stack_context& stack() const { return stack_; }

 private:
  context::fiber run(context::fiber&& scheduler) {
    sanitizer_.entered();
    other_ = std::move(scheduler);
    while (body_) {
      body_();
      pause();
    }
    sanitizer_.leave(true);
    return std::move(other_);
  }

  context::stack_context stack_;
  SanitizerFiber sanitizer_;
  context::fiber other_;  // the side that is not running: scheduler or body
  std::function<void()> body_;
};

class TrackPool {
 public:
  TrackPool() = default;
  TrackPool(const TrackPool&) = delete;
  TrackPool& operator=(const TrackPool&) = delete;
  ~TrackPool() {
    for (const auto& track : free_) {
      track->set_body(nullptr);
      track->resume();
      context::stack_context stack = track->stack();
#if defined(__SANITIZE_ADDRESS__)
      // The outermost frames of a fiber never return.
      __asan_unpoison_memory_region(static_cast<std::byte*>(stack.sp) - stack.size, stack.size);
#endif
      allocator_.deallocate(stack);
    }
  }

  std::unique_ptr<Track> take() {
    if (free_.empty()) return std::make_unique<Track>(allocator_.allocate());
    std::unique_ptr<Track> track = std::move(free_.back());
    free_.pop_back();
    return track;
  }
  void give_back(std::unique_ptr<Track> track) { free_.push_back(std::move(track)); }

 private:
  context::protected_fixedsize_stack allocator_{stack_bytes};
  std::vector<std::unique_ptr<Track>> free_;
};

TrackPool& track_pool() {
  thread_local TrackPool pool;
  return pool;
}

// Tells ThreadSanitizer that accesses before a point where threads wait for each other precede all accesses after it.
class SyncPoints {
 public:
  void arrive([[maybe_unused]] uint64_t point) {
#if defined(GPTRAIN_TSAN)
    __tsan_release(&objects_[point % sizeof objects_]);
#endif
  }
  void depart([[maybe_unused]] uint64_t point) {
#if defined(GPTRAIN_TSAN)
    __tsan_acquire(&objects_[point % sizeof objects_]);
#endif
  }

 private:
  char objects_[1 << 14] = {};
};

enum class State : uint8_t { ready, at_barrier, in_warp, ended };

struct Thread {
  std::unique_ptr<Track> track = track_pool().take();
  ThreadPosition position;
  State state = State::ready;
  Site site;
  uint32_t mask = 0;
  uint64_t value = 0;
  uint64_t num_warp_barriers = 0;  // barriers of its warp so far
  std::array<uint64_t, warp_size> received{};
};

std::string text_of(const Site& site) { return std::string(site.file_name()) + ":" + std::to_string(site.line()); }

bool same(const Site& a, const Site& b) { return a.line() == b.line() && a.column() == b.column(); }

// One block, from the start of its first thread to the end of its last.
class Block {
 public:
  Block(const ThreadPosition& position, std::mt19937_64& order, const std::function<void()>& kernel);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void run();

  Thread& running() { return *threads_[running_]; }
  unsigned running_lane() const { return static_cast<unsigned>(running_ % warp_size); }
  // Suspends the running thread until the others have reached the same statement.
  void suspend(State state, uint32_t mask, uint64_t value, const Site& site);
  void warp_barrier(uint32_t mask, const Site& site);

 private:
  void start(Thread& thread, const std::function<void()>& kernel);
  void resume(size_t thread);
  bool release_warps();
  bool release_barrier();
  [[noreturn]] void report_stuck() const;

  std::mt19937_64& order_;
  SyncPoints barriers_, warp_barriers_;
  // Separate from the others: a thread that has ended reaches no later point.
  SyncPoints ends_;
  SyncPoints faults_;  // points at which threads will never continue
  uint64_t num_barriers_ = 1;
  std::vector<std::unique_ptr<Thread>> threads_;
  size_t running_ = 0;
  std::string fault_;
};

thread_local Block* block_now = nullptr;

Block::Block(const ThreadPosition& position, std::mt19937_64& order, const std::function<void()>& kernel)
    : order_(order) {
  const dim3 size = position.block_size;
  for (unsigned z = 0; z < size.z; ++z)
    for (unsigned y = 0; y < size.y; ++y)
      for (unsigned x = 0; x < size.x; ++x) {
        threads_.push_back(std::make_unique<Thread>());
        threads_.back()->position = position;
        threads_.back()->position.thread = {x, y, z};
        start(*threads_.back(), kernel);
      }
  block_now = this;
}

Block::~Block() {
  block_now = nullptr;
  // After a fault some threads never continue. Unwinding them would run kernel frames that no sanitizer expects, so
  // they are leaked.
  static auto& abandoned = *new std::vector<std::unique_ptr<Thread>>;
  const bool all_ended =
      std::all_of(threads_.begin(), threads_.end(), [](const auto& thread) { return thread->state == State::ended; });
  if (!all_ended) {
    ends_.depart(0);
    faults_.depart(0);
    std::move(threads_.begin(), threads_.end(), std::back_inserter(abandoned));
    return;
  }
  for (const auto& thread : threads_) track_pool().give_back(std::move(thread->track));
}

void Block::start(Thread& thread, const std::function<void()>& kernel) {
  thread.track->set_body([this, &thread, &kernel] {
    barriers_.depart(0);
    try {
      kernel();
    } catch (const Fault& fault) {
      fault_ = fault.what();
    }
    thread.state = State::ended;
    ends_.arrive(0);
  });
}

void Block::resume(size_t thread) {
  running_ = thread;
  threads_[thread]->track->resume();
}

void Block::suspend(State state, uint32_t mask, uint64_t value, const Site& site) {
  Thread& thread = running();
  thread.state = state;
  thread.mask = mask;
  thread.value = value;
  thread.site = site;
  const uint64_t barrier = num_barriers_;
  if (state == State::at_barrier) barriers_.arrive(barrier);
  faults_.arrive(0);
  thread.track->pause();
  if (state == State::at_barrier) barriers_.depart(barrier);
}

// Orders the lanes' accesses, unlike a shuffle.
void Block::warp_barrier(uint32_t mask, const Site& site) {
  constexpr uint64_t of_warp = 512;  // sync points of a warp
  const uint64_t point = running_ / warp_size * of_warp + running().num_warp_barriers++ % of_warp;
  warp_barriers_.arrive(point);
  suspend(State::in_warp, mask, 0, site);
  warp_barriers_.depart(point);
}

void Block::run() {
  barriers_.arrive(0);
  std::vector<size_t> ready;
  for (;;) {
    ready.clear();
    size_t num_ended = 0;
    for (size_t i = 0; i < threads_.size(); ++i) {
      if (threads_[i]->state == State::ready) ready.push_back(i);
      num_ended += threads_[i]->state == State::ended;
    }
    if (num_ended == threads_.size()) break;
    std::shuffle(ready.begin(), ready.end(), order_);
    for (const size_t thread : ready) {
      resume(thread);
      if (!fault_.empty()) throw Fault(fault_);
    }
    const bool warps = release_warps();
    const bool barrier = !warps && ready.empty() && release_barrier();
    if (ready.empty() && !warps && !barrier) report_stuck();
  }
  ends_.depart(0);
}

// Releases lanes that have all reached the same warp function with the same mask.
bool Block::release_warps() {
  bool released = false;
  for (size_t first = 0; first < threads_.size(); first += warp_size) {
    const size_t count = std::min<size_t>(warp_size, threads_.size() - first);
    for (size_t lane = 0; lane < count; ++lane) {
      const Thread& caller = *threads_[first + lane];
      if (caller.state != State::in_warp) continue;
      if ((caller.mask >> lane & 1) == 0) throw Fault(text_of(caller.site) + ": a lane that its mask leaves out");
      bool complete = true;
      for (size_t i = 0; i < warp_size; ++i) {
        if ((caller.mask >> i & 1) == 0) continue;
        if (i >= count) throw Fault(text_of(caller.site) + ": the mask names lanes that the warp does not have");
        const Thread& other = *threads_[first + i];
        complete =
            complete && other.state == State::in_warp && other.mask == caller.mask && same(other.site, caller.site);
      }
      if (!complete) continue;
      const uint32_t mask = caller.mask;
      std::array<uint64_t, warp_size> given{};
      for (size_t i = 0; i < count; ++i) given[i] = threads_[first + i]->value;
      for (size_t i = 0; i < count; ++i) {
        if ((mask >> i & 1) == 0) continue;
        threads_[first + i]->received = given;
        threads_[first + i]->state = State::ready;
      }
      released = true;
    }
  }
  return released;
}

bool Block::release_barrier() {
  const Thread& first = *threads_.front();
  for (const auto& thread : threads_)
    if (thread->state != State::at_barrier || !same(thread->site, first.site)) return false;
  ++num_barriers_;
  for (const auto& thread : threads_) thread->state = State::ready;
  return true;
}

void Block::report_stuck() const {
  for (const auto& thread : threads_) {
    if (thread->state == State::ended) continue;
    for (size_t i = 0; i < threads_.size(); ++i) {
      const Thread& other = *threads_[i];
      const std::string who = text_of(thread->site) + ": thread " + std::to_string(i);
      if (other.state == State::ended) throw Fault(who + " has left while others wait here");
      if (!same(other.site, thread->site)) throw Fault(who + " waits elsewhere, at " + text_of(other.site));
      if (other.mask != thread->mask) throw Fault(who + " comes with another mask");
    }
  }
  throw Fault("a block that cannot go on");
}

}  // namespace

const ThreadPosition& position() { return block_now->running().position; }
unsigned lane() { return block_now->running_lane(); }
void barrier(const Site& site) { block_now->suspend(State::at_barrier, 0, 0, site); }

void warp_barrier(uint32_t mask, const Site& site) { block_now->warp_barrier(mask, site); }

const std::array<uint64_t, warp_size>& exchange(uint32_t mask, uint64_t value, const Site& site) {
  block_now->suspend(State::in_warp, mask, value, site);
  return block_now->running().received;
}

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, uint64_t seed, const std::function<void()>& kernel) {
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (blocks == 0 || threads == 0 || threads > most_threads || shared_bytes > most_shared_bytes)
    throw Fault("a launch that a device refuses: " + std::to_string(blocks) + " blocks of " + std::to_string(threads) +
                " threads with " + std::to_string(shared_bytes) + " bytes of shared memory");
  const DeviceAccess access;
  std::mt19937_64 order(seed);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        const std::unique_ptr<std::byte[]> memory(new std::byte[shared_bytes]);
        std::memset(memory.get(), 0xff, shared_bytes);  // NaN in every float type
        Block(ThreadPosition{{}, {x, y, z}, block, grid, memory.get(), shared_bytes}, order, kernel).run();
      }
}

}  // namespace gptrain::simt
