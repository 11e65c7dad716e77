// A thread beside the rank's, which does one piece of work at a time.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace gptrain {

// All but the work itself is called by one thread.
class BackgroundWork {
 public:
  // `purpose`: as of start_thread, whose Error it throws.
  explicit BackgroundWork(std::string_view purpose);
  // Waits for what runs.
  ~BackgroundWork();
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  // The work before must have been waited for. What `work` refers to stays until then.
  void start(std::function<void()> work);
  // Nothing runs.
  bool is_over() const;
  // What was started has thrown, and has not been waited for.
  bool has_failed() const;
  // Until it is over. Throws what it has thrown, once. At once where nothing was started.
  void wait();

 private:
  void work();

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::function<void()> work_;  // empty: nothing runs
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace gptrain
