#include "train/signals.h"

#include <array>
#include <atomic>
#include <csignal>
#include <unistd.h>

namespace gptrain {
namespace {

constexpr std::array<int, 3> handled = {SIGINT, SIGTERM, SIGUSR1};
std::array<struct sigaction, handled.size()> previous;
std::atomic<int> received = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only use lock-free atomics");

// Two threads may take a signal each at the same time; one of them is the second.
void on_signal(int number) {
  if (received.exchange(number) != 0) _exit(128 + number);
}

}  // namespace

StopSignals::StopSignals() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < handled.size(); ++i) sigaction(handled[i], &action, &previous[i]);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < handled.size(); ++i) sigaction(handled[i], &previous[i], nullptr);
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
