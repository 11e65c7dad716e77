// Stop requests by signal.
#pragma once

namespace gptrain {

// While one lives, the first SIGINT, SIGTERM or SIGUSR1 only sets a flag, so that the running step can finish and be
// saved; a second one ends the process at once with 128 + its number. One at a time per process; the destructor
// restores the handlers that were there.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool requested() const;
  const char* name() const;  // of the signal that came, "SIGTERM"
};

}  // namespace gptrain
