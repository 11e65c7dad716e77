#include "cli/input_text.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace gptrain {

std::string read_standard_input() {
  std::string text;
  std::array<char, 1 << 16> chunk;
  for (size_t count = 0; (count = std::fread(chunk.data(), 1, chunk.size(), stdin)) > 0;) {
    text.append(chunk.data(), count);
  }
  return text;
}

std::string read_text_file(const std::string& path) {
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  if (stream && stream.peek() != std::ifstream::traits_type::eof()) text << stream.rdbuf();
  if (stream.bad() || !stream.is_open() || (text.tellp() == 0 && errno != 0))
    throw Error(ExitCode::usage, "cannot read {}: {}", path, std::generic_category().message(errno));
  return std::move(text).str();
}

}  // namespace gptrain
