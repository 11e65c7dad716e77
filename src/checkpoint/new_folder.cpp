#include "checkpoint/new_folder.h"

#include <system_error>

#include "base/error.h"
#include "checkpoint/files.h"
#include "checkpoint/folder.h"

namespace gptrain {
namespace fs = std::filesystem;
namespace {

void refuse_existing(const fs::path& target, const fs::path& given, const std::string& option) {
  std::error_code unreadable;  // then creating it fails too and says why
  if (fs::exists(fs::symlink_status(target, unreadable))) {
    throw Error(ExitCode::usage, "{} {}: already exists; name a folder that does not", option, given.string());
  }
}

}  // namespace

NewFolder::NewFolder(const fs::path& target, const std::string& option) : given_(target), option_(option) {
  refuse_existing(target, given_, option_);
  target_ = plain_path(target);
  const fs::path temporary = target_.parent_path() / (std::string(temporary_prefix) + target_.filename().string());
  if (const std::string leftover = remove_folder(temporary); !leftover.empty())
    throw Error(ExitCode::checkpoint, "{}", leftover);
  temporary_ = temporary;
}

NewFolder::~NewFolder() { remove_folder(temporary_); }

void NewFolder::write(const std::string& name, const std::string& text) {
  create_folders(temporary_);
  SyncedFile file(temporary_ / name);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.sync_and_close();
}

void NewFolder::publish() {
  sync_folder(temporary_);
  refuse_existing(target_, given_, option_);
  publish_folder(temporary_, target_);
}

}  // namespace gptrain
