// Starts threads; a failure to start is an Error.
#pragma once

#include <cstdint>
#include <exception>
#include <future>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace gptrain::inline base {

// Starts a thread that runs `body`. THROWS Error(machine) "cannot start the thread that PURPOSE..." if the process may
// have no more threads.
template <typename Body>
std::thread start_thread(std::string_view purpose, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw Error(ExitCode::machine,
                "cannot start the thread that {}: {} (see ulimit -u, and pids.max of the control group)", purpose,
                error.what());
  }
}

// Checks that the process may have `number` more threads, by starting and ending them. Call before a library starts its
// threads, if that library ends the process on failure. Throws Error(machine) as start_thread.
inline void require_threads(int64_t number) {
  std::promise<void> all_there;
  const std::shared_future<void> end = all_there.get_future().share();
  std::vector<std::thread> threads;
  std::exception_ptr fault;
  try {
    while (static_cast<int64_t>(threads.size()) < number)
      threads.push_back(start_thread("computes", [end] { end.wait(); }));
  } catch (const Error&) {
    fault = std::current_exception();
  }
  all_there.set_value();
  for (std::thread& thread : threads) thread.join();
  if (fault) std::rethrow_exception(fault);
}

}  // namespace gptrain::base
