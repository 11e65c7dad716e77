// Starts threads; a failure to start is an Error.
#pragma once

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace gptrain {

// Starts a thread that runs `body`. THROWS Error(device) "cannot start the thread that PURPOSE..." if the process may
// have no more threads.
template <typename Body>
std::thread start_thread(std::string_view purpose, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw Error(ExitCode::device, "cannot start the thread that {}: {}", purpose, error.what());
  }
}

}  // namespace gptrain
