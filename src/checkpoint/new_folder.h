// A folder that appears whole or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace gptrain::inline checkpoint {

// A folder that is written under a temporary name beside its own, and removed if the object is destroyed before the
// folder is published. Only one process at a time can write a folder of that name: it holds a lock on the folder.
class NewFolder {
 public:
  // Creates the folder, and removes the files that a killed process has left under its temporary name. THROWS
  // Error(usage) if `target` exists, is an empty path, or is being written by another process; the message names
  // `option`. THROWS Error(checkpoint) if the folder cannot be created.
  NewFolder(const std::filesystem::path& target, const std::string& option);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // folder to write to
  void write(const std::string& name, const std::string& text);
  // Syncs the folder and gives it its final name. THROWS like the constructor.
  void publish();

 private:
  void take();
  void remove_what_was_made();

  std::filesystem::path given_;
  std::string option_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  std::vector<std::filesystem::path> made_folders_;  // parent folders created, innermost first
  int lock_ = -1;
};

}  // namespace gptrain::checkpoint
