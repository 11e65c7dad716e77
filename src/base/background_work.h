// A second thread of a rank, which does one piece of work at a time.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace gptrain::inline base {

// All functions are called by one thread.
class BackgroundWork {
 public:
  // Starts the thread. `purpose` and errors: see start_thread.
  explicit BackgroundWork(std::string_view purpose);
  // Waits for the work.
  ~BackgroundWork();
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  // Starts `work`. REQUIRES: earlier work was waited for. References in `work` must stay valid until it is waited for.
  void start(std::function<void()> work);
  // Returns true if no work runs.
  bool is_over() const;
  // Returns true if the work has thrown and `wait` was not called since.
  bool has_failed() const;
  // Waits for the work, if there is any. Rethrows its exception, once.
  void wait();

 private:
  void work();

  mutable std::mutex mutex_;  // guards the members below except the thread
  std::condition_variable changed_;
  std::function<void()> work_;  // empty if no work runs
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::thread thread_;  // last member: starts after the others are constructed
};

}  // namespace gptrain::base
