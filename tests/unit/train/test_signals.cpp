#include <array>
#include <chrono>
#include <csignal>
#include <initializer_list>
#include <pthread.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "catch.h"
#include "train/signals.h"

namespace gptrain {
namespace {

constexpr std::array<int, 4> stop_signals = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};

// Sets the handlers of the signals that stay ignored if they were. The test's parent may have ignored them.
struct Inherited {
  Inherited(void (*of_hang_up)(int), void (*of_interrupt)(int))
      : hang_up(signal(SIGHUP, of_hang_up)), interrupt(signal(SIGINT, of_interrupt)) {}
  ~Inherited() {
    signal(SIGHUP, hang_up);
    signal(SIGINT, interrupt);
  }
  Inherited(const Inherited&) = delete;
  Inherited& operator=(const Inherited&) = delete;

  void (*hang_up)(int);
  void (*interrupt)(int);
};

int blocked_here() {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  int blocked = 0;
  for (const int number : stop_signals) blocked += sigismember(&mask, number);
  return blocked;
}

// Returns the exit status of a process that gets the signals `late` after a run, one after another.
int status_after(std::initializer_list<int> late) {
  const pid_t child = fork();
  if (child == 0) {
    { const StopSignals signals; }
    for (const int number : late) raise(number);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_CASE("No handler of a stop signal runs on a thread that computes") {
  const Inherited usual(SIG_DFL, SIG_DFL);
  REQUIRE(blocked_here() == 0);
  {
    const StopSignals signals;
    CHECK(blocked_here() == 4);
    int blocked_in_thread = 0;
    std::thread([&] { blocked_in_thread = blocked_here(); }).join();
    CHECK(blocked_in_thread == 4);
    CHECK_FALSE(signals.requested());
  }
  CHECK(blocked_here() == 0);
}

TEST_CASE("A stop signal after a run does not undo it, a second SIGINT or SIGTERM ends the process") {
  const Inherited usual(SIG_DFL, SIG_DFL);
  for (const int number : stop_signals) {
    INFO(number);
    CHECK(status_after({number}) == 0);
    for (const int announcement : {SIGUSR1, SIGUSR2, SIGXCPU, SIGHUP})
      CHECK(status_after({number, announcement, announcement}) == 0);
  }
  for (const auto& [first, second] : {std::pair{SIGINT, SIGINT}, {SIGTERM, SIGINT}}) {
    const int status = status_after({first, second});
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 128 + second);
  }
  CHECK(status_after({SIGTERM, SIGTERM, SIGTERM}) == 0);
}

TEST_CASE("A SIGTERM after a SIGINT, as LSF's bkill sends them, is a first request") {
  const Inherited usual(SIG_DFL, SIG_DFL);
  CHECK(status_after({SIGINT, SIGTERM, SIGTERM}) == 0);
  CHECK(status_after({SIGUSR2, SIGINT, SIGTERM, SIGUSR2}) == 0);
  CHECK(WEXITSTATUS(status_after({SIGINT, SIGTERM, SIGINT})) == 128 + SIGINT);
}

TEST_CASE("A first SIGINT or SIGTERM after signals that announce the end ends nothing, the next one does") {
  const Inherited usual(SIG_DFL, SIG_DFL);
  for (const int announcement : {SIGUSR1, SIGUSR2, SIGXCPU, SIGHUP}) {
    INFO(announcement);
    for (const int request : {SIGINT, SIGTERM}) {
      CHECK(status_after({announcement, request}) == 0);
      CHECK(status_after({announcement, request, announcement}) == 0);
      const int status = status_after({announcement, request, SIGINT});
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 128 + SIGINT);
    }
  }
}

TEST_CASE("The first stop signal is remembered, whoever it was") {
  const Inherited usual(SIG_DFL, SIG_DFL);
  for (const auto& [number, name] :
       {std::pair{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}, {SIGHUP, "SIGHUP"}}) {
    const StopSignals signals;
    kill(getpid(), number);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!signals.requested() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    CHECK(signals.requested());
    CHECK(signals.name() == std::string(name));
  }
}

TEST_CASE("A hang-up or an interrupt that is ignored, as under nohup or in a script's background, stops no run") {
  for (const int ignored : {SIGHUP, SIGINT}) {
    const Inherited inherited(ignored == SIGHUP ? SIG_IGN : SIG_DFL, ignored == SIGINT ? SIG_IGN : SIG_DFL);
    const StopSignals signals;
    CHECK(blocked_here() == 3);
    kill(getpid(), ignored);
    kill(getpid(), SIGTERM);
    while (!signals.requested()) std::this_thread::yield();
    CHECK(signals.name() == std::string("SIGTERM"));
  }
}

TEST_CASE("A notice of the end stops a run although a script ignored it for itself") {
  for (const int number : {SIGUSR1, SIGUSR2, SIGXCPU, SIGTERM}) {
    void (*const before)(int) = signal(number, SIG_IGN);
    {
      const StopSignals signals;
      kill(getpid(), number);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (!signals.requested() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      CHECK(signals.requested());
    }
    signal(number, before);
  }
}

}  // namespace
}  // namespace gptrain
