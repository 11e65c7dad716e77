// A run's folder: made, kept to one process, written to.
#pragma once

#include <filesystem>
#include <string>

namespace gptrain {

// Keeps a second run out of a run's folder for as long as it lives. Makes the folder where it is missing. Error(usage):
// it cannot be made or written, or another gptrain has it.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& out);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

// The file appears whole or not at all.
void write_whole_file(const std::filesystem::path& path, const std::string& text);

}  // namespace gptrain
