#include "base/output.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "base/standard_streams.h"
#include "base/utf8.h"

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

// Returns true for characters that a terminal obeys: some obey those from U+0080 to U+009F, too. Others break lines or
// show the text after them from right to left.
bool is_control(uint32_t code) {
  if (code == '\n' || code == '\t') return false;
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069) || code == num_code_points;
}

// Calls escape(text so far, bytes, code point) for each control character, and for each byte outside of UTF-8.
template <typename Escape>
std::string without_controls(std::string_view text, Escape escape) {
  std::string shown;
  while (!text.empty()) {
    const DecodedCharacter character = decode_utf8(text);
    const std::string_view bytes = text.substr(0, character.length);
    if (is_control(character.code_point)) {
      escape(shown, bytes, character.code_point);
    } else {
      shown += bytes;
    }
    text.remove_prefix(bytes.size());
  }
  return shown;
}

// Past the stream's own buffer, which loses bytes that a full descriptor does not take.
void write_to(std::FILE* stream, std::string_view text) {
  const int descriptor = stream == stdout ? STDOUT_FILENO : STDERR_FILENO;
  std::fflush(stream);
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(written);
    } else if (errno == EINTR || (errno == EAGAIN && wait_until_writable(descriptor))) {
      continue;
    } else {
      if (stream == stdout && out_error == 0) out_error = errno;
      return;
    }
  }
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
  return without_controls(text, [](std::string& shown, std::string_view bytes, uint32_t) {
    for (const char byte : bytes) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  });
}

void write_out(std::string_view text) { write_to(stdout, without_controls(text)); }

void write_json(std::string_view text) {
  // These characters can only be in strings.
  write_to(stdout, without_controls(text, [](std::string& shown, std::string_view, uint32_t code) {
             shown += fmt::format("\\u{:04x}", code);
           }));
}

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
