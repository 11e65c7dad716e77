#include "base/background_work.h"

#include <utility>

#include "base/thread.h"

namespace gptrain::inline base {

BackgroundWork::BackgroundWork(std::string_view purpose) : thread_(start_thread(purpose, [this] { work(); })) {}

BackgroundWork::~BackgroundWork() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundWork::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || work_; });
    if (!work_) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      work_();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = std::exchange(failure, nullptr);
    work_ = {};
    changed_.notify_all();
  }
}

void BackgroundWork::start(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_ = std::move(work);
  }
  changed_.notify_all();
}

bool BackgroundWork::is_over() const {
  const std::lock_guard lock(mutex_);
  return !work_;
}

bool BackgroundWork::has_failed() const {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

void BackgroundWork::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !work_; });
  if (const std::exception_ptr failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
}

}  // namespace gptrain::base
