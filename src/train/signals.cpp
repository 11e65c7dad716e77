#include "train/signals.h"

#include <array>
#include <csignal>
#include <unistd.h>

namespace gptrain {
namespace {

constexpr std::array<int, 3> handled = {SIGINT, SIGTERM, SIGUSR1};
std::array<struct sigaction, handled.size()> previous;
volatile std::sig_atomic_t received = 0;

void on_signal(int number) {
  if (received != 0) _exit(128 + number);
  received = number;
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
