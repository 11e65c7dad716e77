#include "base/output.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace gptrain {
namespace {

std::atomic<int> out_error = 0;  // of the first write that failed

void write_to(std::FILE* stream, std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  if (!written && stream == stdout && out_error == 0) out_error = errno;
}

}  // namespace

void open_missing_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest that is free is this one: those below it are open.
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
  // A library that wrote there by itself, as that of options does, has left no more than errno.
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
