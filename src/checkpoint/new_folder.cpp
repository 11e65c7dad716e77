#include "checkpoint/new_folder.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/directory.h"
#include "base/error.h"
#include "base/file_lock.h"
#include "checkpoint/files.h"
#include "checkpoint/folder.h"

namespace gptrain::inline checkpoint {
namespace fs = std::filesystem;
namespace {

void refuse_existing(const fs::path& target, const fs::path& given, const std::string& option) {
  std::error_code unreadable;  // not reported here: creating the folder fails as well, and says why
  if (fs::exists(fs::symlink_status(target, unreadable))) {
    throw Error(ExitCode::usage, "{} {}: already exists; name a folder that does not", option, given.string());
  }
}

std::vector<fs::path> missing_folders(fs::path folder) {
  std::vector<fs::path> missing;
  std::error_code unreadable;
  for (; !folder.empty() && !fs::exists(folder, unreadable); folder = folder.parent_path()) {
    if (folder == folder.parent_path()) break;
    missing.push_back(folder);
  }
  return missing;
}

// Returns whether the open folder is at `path`; errno has the reason if that cannot be told, else 0.
bool is_folder_of(int descriptor, const fs::path& path) {
  struct stat ours {
  }, there{};
  errno = 0;
  return ::fstat(descriptor, &ours) == 0 && ::lstat(path.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
         ours.st_ino == there.st_ino;
}

}  // namespace

NewFolder::NewFolder(const fs::path& target, const std::string& option) : given_(target), option_(option) {
  if (target.empty()) throw Error(ExitCode::usage, "{}: names no folder", option);
  refuse_existing(target, given_, option_);
  target_ = plain_path(target);
  temporary_ = target_.parent_path() / (std::string(temporary_prefix) + target_.filename().string());
  made_folders_ = missing_folders(temporary_.parent_path());
  try {
    take();
    std::error_code unreadable;  // ignored: writing to the folder fails then
    for (const fs::path& leftover : paths_in(temporary_, unreadable)) {
      if (const std::string fault = remove_folder(leftover); !fault.empty())
        throw Error(ExitCode::checkpoint, "{}", fault);
    }
  } catch (...) {
    remove_what_was_made();
    throw;
  }
}

// The process that held the folder before may rename or remove it between any two of these calls.
void NewFolder::take() {
  for (;;) {
    create_folders(temporary_);
    lock_ = ::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (lock_ < 0 && errno == ENOENT) continue;
    if (lock_ < 0) throw Error(ExitCode::checkpoint, "cannot open {}: {}", temporary_.string(), std::strerror(errno));
    // If the file system has no locks, the folder is not protected from another process with the same target.
    if (const std::error_code error = lock_file(lock_); error && error != std::errc::not_supported) {
      ::close(std::exchange(lock_, -1));
      if (error == std::errc::operation_would_block)
        throw Error(ExitCode::usage, "{} {}: another gptrain is writing this folder", option_, given_.string());
      throw Error(ExitCode::checkpoint, "cannot lock {}: {}", temporary_.string(), error.message());
    }
    if (is_folder_of(lock_, temporary_)) break;
    const int error = errno;
    ::close(std::exchange(lock_, -1));
    if (error != 0 && error != ENOENT && error != ENOTDIR)
      throw Error(ExitCode::checkpoint, "cannot read {}: {}", temporary_.string(), std::strerror(error));
  }
  // The process that held the temporary folder before may have published it by now.
  refuse_existing(target_, given_, option_);
}

NewFolder::~NewFolder() { remove_what_was_made(); }

// Keeps a published folder, another process's folder, and folders that are not empty.
void NewFolder::remove_what_was_made() {
  if (lock_ >= 0 && is_folder_of(lock_, temporary_)) remove_folder(temporary_);
  if (lock_ >= 0) ::close(std::exchange(lock_, -1));
  for (const fs::path& folder : made_folders_) ::rmdir(folder.c_str());
}

void NewFolder::write(const std::string& name, const std::string& text) {
  SyncedFile file(temporary_ / name);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.sync_and_close();
}

void NewFolder::publish() {
  sync_folder(temporary_);
  refuse_existing(target_, given_, option_);
  publish_folder(temporary_, target_);
}

}  // namespace gptrain::checkpoint
