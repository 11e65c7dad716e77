#include <array>
#include <chrono>
#include <csignal>
#include <pthread.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

#include "catch.h"
#include "train/signals.h"

namespace gptrain {
namespace {

constexpr std::array<int, 3> stop_signals = {SIGINT, SIGTERM, SIGUSR1};

int blocked_here() {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  int blocked = 0;
  for (const int number : stop_signals) blocked += sigismember(&mask, number);
  return blocked;
}

std::array<void (*)(int), 3> handlers() {
  std::array<void (*)(int), 3> found;
  for (size_t i = 0; i < stop_signals.size(); ++i) {
    struct sigaction action {};
    sigaction(stop_signals[i], nullptr, &action);
    found[i] = action.sa_handler;
  }
  return found;
}

TEST_CASE("No handler of a stop signal runs on a thread that computes") {
  REQUIRE(blocked_here() == 0);
  const auto handlers_before = handlers();
  {
    const StopSignals signals;
    CHECK(blocked_here() == 3);
    int blocked_in_thread = 0;
    std::thread([&] { blocked_in_thread = blocked_here(); }).join();
    CHECK(blocked_in_thread == 3);
    CHECK_FALSE(signals.requested());
  }
  CHECK(blocked_here() == 0);
  CHECK(handlers() == handlers_before);
}

TEST_CASE("The first stop signal is remembered, whoever it was") {
  for (const auto& [number, name] : {std::pair{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}}) {
    const StopSignals signals;
    kill(getpid(), number);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!signals.requested() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    CHECK(signals.requested());
    CHECK(signals.name() == std::string(name));
  }
}

}  // namespace
}  // namespace gptrain
