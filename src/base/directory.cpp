#include "base/directory.h"

namespace gptrain {

std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder, std::error_code& error) {
  std::vector<std::filesystem::path> paths;
  // A range-based loop would throw where reading on fails.
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    paths.push_back(entry->path());
  return paths;
}

}  // namespace gptrain
