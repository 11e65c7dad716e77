#include "train/folder.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "base/error.h"
#include "base/output_file.h"

namespace gptrain {

namespace fs = std::filesystem;

FolderLock::FolderLock(const fs::path& out) : path_(out / ".lock") {
  std::error_code error;
  for (fs::path folder = out; !folder.empty() && !fs::exists(folder, error); folder = folder.parent_path())
    made_folders_.push_back(folder);
  fs::create_directories(out, error);
  if (error) {
    remove_what_was_made();
    throw Error(ExitCode::usage, "run.out: cannot create {}: {}", out.string(), error.message());
  }
  if (!lock()) throw Error(ExitCode::usage, "run.out = {}: another gptrain is running in this folder", out.string());
}

bool FolderLock::lock() {
  for (;;) {
    made_lock_ = true;
    descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor_ < 0 && errno == EEXIST) {
      made_lock_ = false;
      descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    }
    if (descriptor_ < 0) {
      const int fault = errno;
      made_lock_ = false;
      remove_what_was_made();
      throw Error(ExitCode::usage, "run.out: cannot write {}: {}", path_.string(), std::strerror(fault));
    }
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      close(descriptor_);
      return false;
    }
    // Who had the lock before may have removed its file: another process could make and lock a new one.
    struct stat ours {
    }, there{};
    if (fstat(descriptor_, &ours) == 0 && stat(path_.c_str(), &there) == 0 && ours.st_ino == there.st_ino) return true;
    close(descriptor_);
  }
}

FolderLock::~FolderLock() {
  if (!kept_) remove_what_was_made();
  close(descriptor_);
}

void FolderLock::remove_what_was_made() const {
  std::error_code error;
  if (made_lock_) fs::remove(path_, error);
  // A folder that has something in it stays.
  for (const fs::path& folder : made_folders_) rmdir(folder.c_str());
}

void write_whole_file(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace gptrain
