// A folder that is there as a whole or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace gptrain {

// It is written under a temporary name beside its own, and removed if it is destroyed unpublished. One process at a
// time has that name: it holds a lock on the folder.
class NewFolder {
 public:
  // Makes it, and removes what a process that was killed has left under its name. Error(usage) if `target` exists, is
  // empty, or is being written by another process; `option` names it in the message. Error(checkpoint): it cannot be
  // made.
  NewFolder(const std::filesystem::path& target, const std::string& option);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // to write to
  void write(const std::string& name, const std::string& text);
  // Syncs it and gives it its name. Errors as in the constructor.
  void publish();

 private:
  void take();
  void remove_what_was_made();

  std::filesystem::path given_;
  std::string option_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  std::vector<std::filesystem::path> made_folders_;  // that it lies in, the innermost first
  int lock_ = -1;
};

}  // namespace gptrain
