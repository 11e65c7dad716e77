#include "base/output.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace gptrain::inline base {
namespace {

std::atomic<int> out_error = 0;  // errno of the first write that failed; 0: none

// Whoever made the descriptor non-blocking shares it with others, so it stays so: full means that its reader is slow.
bool wait_until_writable(int descriptor) {
  pollfd waiting{descriptor, POLLOUT, 0};
  while (poll(&waiting, 1, -1) < 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

// Past the stream's own buffer, which loses bytes that a full descriptor does not take.
void write_to(std::FILE* stream, std::string_view text) {
  const int descriptor = stream == stdout ? STDOUT_FILENO : STDERR_FILENO;
  std::fflush(stream);
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EINTR || (errno == EAGAIN && wait_until_writable(descriptor))) {
      continue;
    } else {
      if (stream == stdout && out_error == 0) out_error = errno;
      return;
    }
  }
}

// Returns the bytes of the first character of a text in UTF-8; 0: it begins with none.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xc2 && first < 0xe0   ? 2
                        : (first & 0xf0U) == 0xe0       ? 3
                        : first >= 0xf0 && first < 0xf5 ? 4
                                                        : 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0U) != 0x80) return 0;
  // Longer forms than needed, surrogates, and numbers beyond U+10FFFF.
  const bool is_none = (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
                       (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90);
  return is_none ? 0 : length;
}

}  // namespace

void open_missing_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, which is `stream`: the lower ones are open.
    (void)open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

std::string without_controls(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const auto code = static_cast<unsigned char>(text.front());
    const size_t length = character_bytes(text);
    const bool is_plain = text.front() == '\n' || text.front() == '\t' || (code >= 0x20 && code != 0x7f);
    // The control characters from U+0080 to U+009F, which some terminals obey, too.
    const bool is_second_set = length == 2 && code == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;
    const size_t taken = std::max<size_t>(length, 1);
    if (length > 0 && is_plain && !is_second_set) {
      shown += text.substr(0, taken);
    } else {
      for (const char byte : text.substr(0, taken)) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    text.remove_prefix(taken);
  }
  return shown;
}

void write_out(std::string_view text) { write_to(stdout, without_controls(text)); }

void write_err(std::string_view text) { write_to(stderr, without_controls(text)); }

void write_result(std::string_view text) {
  if (isatty(STDOUT_FILENO) == 1) return write_out(text);
  write_to(stdout, text);
}

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

}  // namespace gptrain::base
