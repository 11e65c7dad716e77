#include "train/folder.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <system_error>
#include <unistd.h>

#include "base/error.h"
#include "base/output_file.h"

namespace gptrain {

FolderLock::FolderLock(const std::filesystem::path& out) {
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) throw Error(ExitCode::usage, "run.out: cannot create {}: {}", out.string(), error.message());
  const std::filesystem::path path = out / ".lock";
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0)
    throw Error(ExitCode::usage, "run.out: cannot write {}: {}", path.string(), std::strerror(errno));
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    close(descriptor_);
    throw Error(ExitCode::usage, "run.out = {}: another gptrain is running in this folder", out.string());
  }
}

FolderLock::~FolderLock() { close(descriptor_); }

void write_whole_file(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace gptrain
