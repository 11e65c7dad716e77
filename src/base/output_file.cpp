#include "base/output_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/file_error.h"

namespace gptrain::inline base {
namespace {

[[noreturn]] void fail(ExitCode code, const char* action, const std::filesystem::path& path, int error_number) {
  throw Error(code, "cannot {} {}: {}", action, path.string(), std::strerror(error_number));
}

int open_flags(OutputFile::Mode mode) {
  switch (mode) {
    case OutputFile::Mode::append:
      return O_APPEND | O_CREAT;
    case OutputFile::Mode::overwrite:
      return O_TRUNC | O_CREAT;
    case OutputFile::Mode::create:
      return O_EXCL | O_CREAT;
  }
  return 0;
}

// A rename is durable only once its folder is synced. Some file systems refuse to sync a folder; the rename is then
// still done.
void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  sync_descriptor(descriptor);
  ::close(descriptor);
}

// Returns the path of the temporary file beside `path`. Removes a link there, which is none of gptrain's.
std::filesystem::path temporary_path(std::filesystem::path path) {
  path += ".tmp";
  std::error_code unreadable;  // then opening says why
  if (std::filesystem::is_symlink(path, unreadable)) ::unlink(path.c_str());
  return path;
}

[[noreturn]] void refuse_unordinary(ExitCode code, const char* action, const std::filesystem::path& path) {
  throw Error(code, "cannot {} {}: it is no ordinary file", action, path.string());
}

// Returns the path; refuses devices and pipes there, which a rename would replace by a file.
std::filesystem::path ordinary(std::filesystem::path path, const char* action, ExitCode code) {
  std::error_code none;
  const std::filesystem::file_status there = std::filesystem::status(path, none);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there) &&
      !std::filesystem::is_directory(there))
    refuse_unordinary(code, action, path);
  return path;
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path path, Mode mode, ExitCode code) : OutputFile(path, mode, code, path) {}

OutputFile::OutputFile(std::filesystem::path path, Mode mode, ExitCode code, std::filesystem::path shown)
    : path_(std::move(path)), shown_(std::move(shown)), code_(code) {
  if (mode != Mode::create) remove_lost_link(path_);
  // Appending opens with O_NONBLOCK: otherwise, opening a pipe that nobody reads would never return.
  const bool appends = mode == Mode::append;
  const int flags = open_flags(mode) | O_WRONLY | O_CLOEXEC | (appends ? O_NONBLOCK : 0);
  descriptor_ = call_with_tries([&] { return ::open(path_.c_str(), flags, 0666); });
  if (descriptor_ < 0 && appends && errno == ENXIO) refuse_unordinary(code_, "append to", path_);
  if (descriptor_ < 0) fail(code_, "open", shown_, errno);
  struct stat status {};
  if (!appends || ::fstat(descriptor_, &status) != 0) return;
  // Character devices, such as a terminal or /dev/full, can be appended to.
  if (!S_ISREG(status.st_mode) && !S_ISCHR(status.st_mode)) {
    ::close(descriptor_);
    refuse_unordinary(code_, "append to", path_);
  }
  ::fcntl(descriptor_, F_SETFL, ::fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK);
  end_ = status.st_size;
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      shown_(std::move(other.shown_)),
      code_(other.code_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      end_(other.end_) {}

void OutputFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = call_with_tries([&] { return ::write(descriptor_, bytes.data(), bytes.size()); });
    if (written < 0) fail(code_, "write", shown_, errno);
    bytes.remove_prefix(written);
    end_ += written;
  }
}

bool OutputFile::is_at(const std::filesystem::path& path) const {
  struct stat ours {
  }, there{};
  errno = 0;
  return ::fstat(descriptor_, &ours) == 0 && ::stat(path.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
         ours.st_ino == there.st_ino && ours.st_size >= end_;
}

bool OutputFile::is_in_place() const { return is_at(path_) || is_transient(errno); }

void OutputFile::replace(std::string_view bytes) {
  if (::ftruncate(descriptor_, 0) != 0 || ::lseek(descriptor_, 0, SEEK_SET) != 0) fail(code_, "write", shown_, errno);
  end_ = 0;
  write(bytes);
}

void OutputFile::sync(const std::function<bool()>& repair) {
  for (int tries = 1; sync_descriptor(descriptor_) != 0;) {
    const int error = errno;
    if (!may_pass(error) || tries == most_tries || !repair()) fail(code_, "sync", shown_, error);
    wait_before_try(++tries);
  }
}

AtomicFile::AtomicFile(std::filesystem::path path, ExitCode code)
    : path_(ordinary(std::move(path), "replace", code)),
      temporary_(temporary_path(path_), OutputFile::Mode::overwrite, code, path_) {}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_.path().c_str());
}

void AtomicFile::write(std::string_view bytes) {
  constexpr size_t longest_content = size_t{64} << 20;
  if (content_ && content_->size() + bytes.size() > longest_content) content_.reset();
  if (content_) *content_ += bytes;
  temporary_.write(bytes);
}

void AtomicFile::commit() {
  temporary_.sync([this] {
    if (content_) temporary_.replace(*content_);
    return content_.has_value();
  });
  const auto rename = [&] {
    if (::rename(temporary_.path().c_str(), path_.c_str()) == 0) return 0;
    const int error = errno;
    // The server may have done it although its answer was lost.
    if (temporary_.is_at(path_)) return 0;
    errno = error;
    return -1;
  };
  if (call_with_tries(rename) != 0) fail(temporary_.code(), "replace", path_, errno);
  committed_ = true;
  sync_folder(path_.parent_path());
}

void remove_lost_link(const std::filesystem::path& path) {
  std::error_code unreadable;  // then opening says why
  if (std::filesystem::is_symlink(path, unreadable) && !std::filesystem::exists(path, unreadable) && !unreadable)
    ::unlink(path.c_str());
}

void check_can_write(const std::filesystem::path& path, ExitCode code) {
  std::error_code unreadable;  // then opening says why
  if (path.filename().empty() || std::filesystem::is_directory(path, unreadable))
    throw Error(code, "cannot write {}: it is a folder; name a file in it", path.string());
  const AtomicFile probe(path, code);
}

}  // namespace gptrain::base
