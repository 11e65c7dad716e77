// Stop requests by signal.
#pragma once

#include <csignal>
#include <thread>

namespace gptrain {

// While one lives, the first SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU or, where it is not ignored, SIGHUP only sets a
// flag, so that the running step can finish and be saved; a second one ends the process at once with 128 + its number,
// unless it is SIGHUP, SIGUSR2, SIGXCPU, the first after one of these two, or a SIGTERM within five seconds of the
// first SIGTERM. A thread of its own takes the signals. They are blocked in the thread that makes it and so in all
// threads started from there later, because no handler may run on a thread that computes: oneDNN's AVX-512 sgemm
// kernels keep a data pointer in the stack pointer, and a signal's frame would be written over what it points to. One
// at a time per process. The destructor restores the mask that was there, not the handlers: a signal that comes between
// the end of a run and that of the process does not undo what is done, and a second one still ends it. Throws Error
// (device) when the thread cannot be started.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool requested() const;
  const char* name() const;  // of the signal that came, "SIGTERM"

 private:
  sigset_t mask_before_;
  std::thread thread_;
};

// Lets standard output and error, where they were a terminal that is gone and fails every write, go nowhere: whether
// one of them does, now or since an earlier call. SIGHUP calls it, which may come after the first write that fails.
bool leave_lost_terminal();

// Writes the lines that a run has printed so far. They only accompany it: where nobody takes them, as at a full disk or
// a closed pipe, a warning says so once, and the run goes on without.
void flush_lines();

}  // namespace gptrain
