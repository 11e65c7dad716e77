#include "base/output.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace gptrain {
namespace {

std::atomic<int> out_error = 0;  // errno of the first write that failed; 0: none

void write_to(std::FILE* stream, std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  if (!written && stream == stdout && out_error == 0) out_error = errno;
}

}  // namespace

void open_missing_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, which is `stream`: the lower ones are open.
    (void)open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void write_out(std::string_view text) { write_to(stdout, text); }

void write_err(std::string_view text) { write_to(stderr, text); }

std::string flush_out() {
  const int before = errno;
  errno = 0;
  if (std::fflush(stdout) != 0 && out_error == 0) out_error = errno;
  if (out_error == 0 && std::ferror(stdout) == 0) return "";
  // Output that a library (the option parser) writes by itself leaves only errno.
  return std::strerror(out_error != 0 ? out_error.load() : before);
}

void give_up_out() {
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(nowhere, STDOUT_FILENO);
  close(nowhere);
  std::clearerr(stdout);
  std::fflush(stdout);
  out_error = 0;
}

}  // namespace gptrain
