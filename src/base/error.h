// The one exception type of gptrain, and the exit codes that the command line promises.
#pragma once

#include <fmt/format.h>
#include <stdexcept>
#include <string>

#include "base/lines.h"

namespace gptrain::inline base {

enum class ExitCode : int {
  finished = 0,
  internal = 1,    // a fault of gptrain itself
  usage = 2,       // bad command line or config
  data = 3,        // bad data
  checkpoint = 4,  // bad checkpoint
  device = 5,      // device or communication failure
  diverged = 6,    // training diverged
  machine = 7,     // this machine or this build cannot do it, now or later
  requeue = 75,    // stopped by a signal after saving
};

// A message for the user and the exit code of the process. main() prints the message and exits. No other code prints an
// Error, except refuse_on_all_ranks (train/refuse_on_all_ranks.h), which does so before it waits for other processes.
// A message may have several lines (all faults of a config); it is empty if the error has been reported already.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const Lines& message) : std::runtime_error(message.text()), code_(code) {}
  Error(ExitCode code, const std::string& message) : Error(code, Lines("{}", message)) {}
  // Keeps line breaks as Lines does: give it lines() of an error, as its plain text would be put on one line.
  template <typename Arg, typename... Args>
  Error(ExitCode code, fmt::format_string<Arg, Args...> format, const Arg& arg, const Args&... args)
      : Error(code, Lines(format, arg, args...)) {}

  ExitCode code() const { return code_; }
  Lines lines() const { return Lines::written(what()); }

 private:
  ExitCode code_;
};

}  // namespace gptrain::base
