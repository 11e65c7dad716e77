#include "train/signals.h"

#include <array>
#include <atomic>
#include <pthread.h>
#include <unistd.h>

#include "base/thread.h"

namespace gptrain {
namespace {

constexpr std::array<int, 3> handled = {SIGINT, SIGTERM, SIGUSR1};
std::atomic<int> received = 0;
std::atomic<bool> ending = false;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only use lock-free atomics");

sigset_t handled_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : handled) sigaddset(&set, number);
  return set;
}

// A library's thread, which does not block the signals, may take one at the same time as the thread below: one of the
// two is the second.
void on_signal(int number) {
  if (received.exchange(number) != 0) _exit(128 + number);
}

void take_signals() {
  const sigset_t set = handled_set();
  int number = 0;
  while (sigwait(&set, &number) == 0 && !ending) on_signal(number);
}

}  // namespace

StopSignals::StopSignals() {
  received = 0;
  ending = false;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : handled) sigaction(number, &action, nullptr);
  const sigset_t set = handled_set();
  pthread_sigmask(SIG_BLOCK, &set, &mask_before_);
  thread_ = start_thread("waits for signals", take_signals);
}

StopSignals::~StopSignals() {
  ending = true;
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

bool StopSignals::requested() const { return received != 0; }

const char* StopSignals::name() const {
  switch (received) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "no signal";
  }
}

}  // namespace gptrain
