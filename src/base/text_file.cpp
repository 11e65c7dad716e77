#include "base/text_file.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "base/error.h"
#include "base/printable.h"
#include "base/units.h"

namespace gptrain::inline base {
namespace {

std::string read_all(std::FILE* file, const std::string& name, int64_t most_bytes) {
  std::string text;
  std::array<char, 1 << 16> chunk;
  for (size_t count = 0; (count = std::fread(chunk.data(), 1, chunk.size(), file)) > 0;) {
    text.append(chunk.data(), count);
    if (static_cast<int64_t>(text.size()) > most_bytes) {
      throw Error(ExitCode::usage, "{} is larger than {}, the limit for this file", name,
                  format_bytes(static_cast<double>(most_bytes)));
    }
  }
  return text;
}

}  // namespace

std::string read_standard_input() { return read_all(stdin, "the standard input", max_text_bytes); }

std::string read_text_file(const std::filesystem::path& path, int64_t most_bytes) {
  const std::string name = printable(path.native());
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rb"), close);
  errno = file == nullptr ? errno : 0;
  std::string text = file == nullptr ? std::string() : read_all(file.get(), name, most_bytes);
  if (file == nullptr || std::ferror(file.get()) != 0)
    throw Error(ExitCode::usage, "cannot read {}: {}", name, std::generic_category().message(errno));
  if (text.starts_with(git_lfs_pointer))
    throw Error(ExitCode::usage, "{} is a Git LFS pointer, not the file itself: fetch it with git lfs pull", name);
  return text;
}

}  // namespace gptrain::base
