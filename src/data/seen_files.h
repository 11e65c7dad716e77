// Finds a file that is given twice, under whatever names: links, patterns that overlap, a folder and a file in it.
#pragma once

#include <compare>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <sys/types.h>

namespace gptrain::inline data {

class SeenFiles {
 public:
  // Returns the number, from 0, of the first call with the same file; nullopt for a new file, and for one that does not
  // exist. "-" is the standard input.
  std::optional<size_t> add(const std::filesystem::path& path);

 private:
  struct Identity {
    dev_t device;
    ino_t inode;
    auto operator<=>(const Identity&) const = default;
  };

  std::map<Identity, size_t> calls_;
  size_t num_calls_ = 0;
};

}  // namespace gptrain::data
