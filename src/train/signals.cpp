#include "train/signals.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "base/output.h"
#include "base/standard_streams.h"
#include "base/thread.h"

namespace gptrain::inline train {
namespace {

constexpr std::array<int, 6> stop_signals = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGHUP};
constexpr std::chrono::seconds one_request{5};

std::atomic<int> received = 0;
std::atomic<int64_t> first_term = 0;  // time of the first SIGTERM, in ticks of the steady clock; 0: none
std::atomic<bool> ending = false;
std::atomic<bool> left_terminal = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "a signal handler may only use lock-free atomics");

// Returns false for an ignored SIGHUP or SIGINT: nohup lets a run outlive its terminal, and shells let jobs in the
// background of a script outlive a Ctrl-C. The other signals count although ignored: a script that ignores them to
// outlive a job's end passes that on to the run, which must save.
bool is_handled(int number) {
  if (number != SIGHUP && number != SIGINT) return true;
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN;
}

sigset_t handled_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : stop_signals) {
    if (is_handled(number)) sigaddset(&set, number);
  }
  return set;
}

// Returns true if this SIGTERM belongs to the first one: Slurm sends two in quick succession to a job whose time is
// over. Time counts from the first SIGTERM only: a user who sends one every few seconds wants the process to end.
bool is_repeated_term(int number) {
  if (number != SIGTERM) return false;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  int64_t earlier = 0;
  if (first_term.compare_exchange_strong(earlier, now.count())) return false;
  return now - std::chrono::steady_clock::duration(earlier) < one_request;
}

// Returns true for signals that only announce the end and never end the process. Schedulers send SIGINT or SIGTERM
// after them, which then is no second request: Slurm after SIGUSR1, LSF after SIGUSR2 and SIGXCPU, systemd after
// SIGHUP. The kernel repeats SIGXCPU every second. SIGHUP may come twice, from the kernel and from the shell.
bool is_announcement(int number) { return number != SIGINT && number != SIGTERM; }

// Returns a signal's rank in the order in which schedulers send them: one after less urgent ones is a first request.
// LSF's bkill sends SIGINT, after ten seconds SIGTERM, and after ten more SIGKILL.
int urgency(int number) { return is_announcement(number) ? 0 : number == SIGINT ? 1 : 2; }

// Handles a signal. A library's thread, which does not block the signals, may take one at the same time as
// take_signals; then one of the two counts as the second.
void on_signal(int number) {
  int before = 0;
  bool is_first = received.compare_exchange_strong(before, number);
  if (!is_first && urgency(number) > urgency(before)) is_first = received.compare_exchange_strong(before, number);
  if (number == SIGHUP) leave_lost_terminal();
  if (!is_repeated_term(number) && !is_announcement(number) && !is_first) _exit(128 + number);
}

void take_signals() {
  const sigset_t set = handled_set();
  int number = 0;
  while (sigwait(&set, &number) == 0 && !ending) on_signal(number);
}

}  // namespace

bool leave_lost_terminal() {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    const int saved_errno = errno;
    if (isatty(stream) == 0 && errno == EIO) {
      const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
      if (dup2(nowhere, stream) == stream) left_terminal = true;
      close(nowhere);
    }
    errno = saved_errno;
  }
  return left_terminal;
}

void flush_lines() {
  const std::string why = flush_out();
  if (why.empty()) return;
  if (!leave_lost_terminal())
    print_err("warning: cannot write to standard output: {}; the run goes on without its lines\n", why);
  give_up_out();
}

StopSignals::StopSignals() {
  received = 0;
  first_term = 0;
  ending = false;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : stop_signals) {
    if (is_handled(number)) sigaction(number, &action, nullptr);
  }
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
    case SIGUSR2:
      return "SIGUSR2";
    case SIGXCPU:
      return "SIGXCPU";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "no signal";
  }
}

}  // namespace gptrain::train
