// A folder that is there as a whole or not at all.
#pragma once

#include <filesystem>
#include <string>

namespace gptrain {

// It is written under a temporary name beside its own, and removed if it is destroyed unpublished.
class NewFolder {
 public:
  // Error(usage) if `target` exists; `option` names it in the message. Error(checkpoint): it cannot be made.
  NewFolder(const std::filesystem::path& target, const std::string& option);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // to write to
  void write(const std::string& name, const std::string& text);
  // Syncs it and gives it its name. Errors as in the constructor.
  void publish();

 private:
  std::filesystem::path given_;
  std::string option_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;
};

}  // namespace gptrain
