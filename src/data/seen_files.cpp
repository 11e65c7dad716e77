#include "data/seen_files.h"

#include <sys/stat.h>
#include <unistd.h>

namespace gptrain::inline data {

std::optional<size_t> SeenFiles::add(const std::filesystem::path& path) {
  const size_t call = num_calls_++;
  struct stat status {};
  const int result = path == "-" ? ::fstat(STDIN_FILENO, &status) : ::stat(path.c_str(), &status);
  // Some file systems give no inode numbers.
  if (result != 0 || status.st_ino == 0) return std::nullopt;
  const auto [known, is_new] = calls_.try_emplace({status.st_dev, status.st_ino}, call);
  return is_new ? std::nullopt : std::optional(known->second);
}

}  // namespace gptrain::data
