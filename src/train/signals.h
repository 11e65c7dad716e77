// Stop requests by signal.
#pragma once

#include <csignal>
#include <thread>

namespace gptrain::inline train {

// While an object of this class exists, the first SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU or, where it is not
// ignored, SIGHUP only sets a flag, so that the running step can finish and be saved; a second one ends the process at
// once with 128 + its number, unless it is SIGHUP, SIGUSR2, SIGXCPU, the first after one of these two, or a SIGTERM
// within five seconds of the first SIGTERM. The object's own thread takes the signals, which are blocked in the thread
// that creates the object and so in all threads started from there later, because no handler may run on a thread that
// computes: oneDNN's AVX-512 sgemm kernels keep a data pointer in the stack pointer, and a signal's frame would
// overwrite the data that it points to. REQUIRES: at most one object per process at a time. The destructor restores the
// earlier signal mask, not the handlers: a signal between the end of a run and the end of the process does not change
// the result, and a second one still ends the process. The constructor THROWS Error(machine) if the thread cannot be
// started.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool requested() const;
  const char* name() const;  // name of the first signal, e.g. "SIGTERM"

 private:
  sigset_t mask_before_;
  std::thread thread_;
};

// Discards further standard output, and standard error, if its terminal is gone and fails every write. Returns true if
// one of them is discarded, now or since an earlier call. Called at SIGHUP, and after a write that failed before it.
bool leave_lost_terminal();

// Flushes the lines that a run has printed so far. If that fails, e.g. by a full disk or a closed pipe, prints one
// warning, and the run goes on without these lines.
void flush_lines();

}  // namespace gptrain::train
