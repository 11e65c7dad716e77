#include "base/directory.h"

#include "base/file_error.h"

namespace gptrain::inline base {

std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder, std::error_code& error) {
  for (int tries = 1;;) {
    std::vector<std::filesystem::path> paths;
    // A range-based for loop would throw if the folder cannot be read to its end.
    std::filesystem::directory_iterator entry(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
      paths.push_back(entry->path());
    if (!may_pass(error.value()) || tries == most_tries) return paths;
    wait_before_try(++tries);
  }
}

}  // namespace gptrain::base
