#include "checkpoint/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/error.h"
#include "base/file_error.h"
#include "base/output.h"
#include "checkpoint/folder.h"

namespace gptrain::inline checkpoint {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const char* action, const fs::path& path, int error) {
  if (may_pass(error))
    throw TransientError(fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(error)));
  throw Error(ExitCode::checkpoint, "cannot {} {}: {}", action, path.string(), std::strerror(error));
}

// Repeats a call that a signal interrupted.
template <typename Call>
auto retry(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result == -1 && errno == EINTR);
  return result;
}

bool is_there(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return true;
  if (is_transient(errno)) fail("read", path, errno);
  return false;
}

void move_folder(const fs::path& from, const fs::path& to) {
  with_more_tries([&] {
    if (std::rename(from.c_str(), to.c_str()) == 0) return;
    const int error = errno;
    // The server may have done it although its answer was lost.
    if (may_pass(error) && !is_there(from) && is_there(to)) return;
    fail("rename", fmt::format("{} to {}", from.string(), to.string()), error);
  });
}

// Lets two folders change places in one step. Returns false if the file system cannot.
bool exchange_folders(const fs::path& temporary, const fs::path& target) {
  struct stat wanted {};
  if (::lstat(temporary.c_str(), &wanted) != 0) fail("read", temporary, errno);
  bool exchanged = true;
  with_more_tries([&] {
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
    const int error = errno;
    exchanged = error != EINVAL && error != ENOSYS && error != EOPNOTSUPP;
    if (!exchanged) return;
    // The server may have done it although its answer was lost.
    struct stat there {};
    if (::lstat(target.c_str(), &there) == 0 && there.st_dev == wanted.st_dev && there.st_ino == wanted.st_ino) return;
    fail("replace", target, error);
  });
  return exchanged;
}

void sync_parent(const fs::path& folder) {
  with_more_tries([&] { sync_folder(folder.parent_path()); });
}

// Replaces `target` on file systems that cannot exchange two names. A crash between the two renames leaves no folder of
// that name; the checkpoint before it is then the newest complete one.
void replace_in_two_steps(const fs::path& temporary, const fs::path& target) {
  const fs::path aside =
      target.parent_path() / (std::string(temporary_prefix) + "replaced-" + target.filename().string());
  remove_folder(aside);
  move_folder(target, aside);
  try {
    move_folder(temporary, target);
  } catch (const Error&) {
    move_folder(aside, target);
    throw;
  }
  sync_parent(target);
  remove_folder(aside);
}

}  // namespace

void with_more_tries(const std::function<void()>& attempt) {
  for (int tries = 1;;) {
    try {
      return attempt();
    } catch (const TransientError& error) {
      if (tries == most_tries) throw;
      print_err("warning: {}; it is tried again\n", error.what());
      wait_before_try(++tries);
    }
  }
}

SyncedFile::SyncedFile(fs::path path) : path_(std::move(path)) {
  descriptor_ = retry([&] { return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (descriptor_ < 0) fail("create", path_, errno);
}

SyncedFile::~SyncedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void SyncedFile::Freed::operator()(std::byte* memory) const { std::free(memory); }

void SyncedFile::write_past_cache() {
  constexpr long ext4 = 0xef53;
  constexpr long xfs = 0x58465342;
  struct statfs system {};
  if (::fstatfs(descriptor_, &system) != 0 || (system.f_type != ext4 && system.f_type != xfs)) return;
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) != 0) return;
  constexpr size_t alignment = 4096;  // no smaller than the blocks of disks in use
  direct_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, direct_buffer_bytes)));
  if (!direct_) stop_past_cache();
}

// Returns to cached writes: the rest is not a whole block, or the system refuses direct writes.
void SyncedFile::stop_past_cache() {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT) != 0) fail("write", path_, errno);
  const auto buffer = std::move(direct_);
  if (num_buffered_ > 0) write_through(buffer.get(), std::exchange(num_buffered_, 0));
}

void SyncedFile::write(const void* data, int64_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (direct_ && bytes > 0) {
    const int64_t n = std::min(bytes, direct_buffer_bytes - num_buffered_);
    std::memcpy(direct_.get() + num_buffered_, at, n);
    num_buffered_ += n;
    at += n;
    bytes -= n;
    if (num_buffered_ < direct_buffer_bytes) continue;
    const ssize_t written = retry([&] { return ::write(descriptor_, direct_.get(), direct_buffer_bytes); });
    if (written < 0 && errno != EINVAL) fail("write", path_, errno);
    if (written == direct_buffer_bytes) {
      num_buffered_ = 0;
    } else {
      const int64_t rest = direct_buffer_bytes - std::max<int64_t>(written, 0);
      std::memmove(direct_.get(), direct_.get() + direct_buffer_bytes - rest, static_cast<size_t>(rest));
      num_buffered_ = rest;
      stop_past_cache();
    }
  }
  write_through(at, bytes);
}

void SyncedFile::write_through(const void* data, int64_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t n = retry([&] { return ::write(descriptor_, at, static_cast<size_t>(bytes)); });
    if (n < 0) fail("write", path_, errno);
    at += n;
    bytes -= n;
  }
}

void SyncedFile::sync_and_close() {
  if (direct_) stop_past_cache();
  if (sync_descriptor(descriptor_) != 0) fail("sync", path_, errno);
  // Network file systems report a full disk here. The descriptor is gone even if this fails.
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) fail("close", path_, errno);
}

InputFile::InputFile(fs::path path) : path_(std::move(path)) {
  // O_NONBLOCK: do not wait for a writer if the path is a pipe. No effect on files.
  descriptor_ = call_with_tries([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (descriptor_ < 0) fail("open", path_, errno);
  struct stat status {};
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(status.st_mode)) {
    ::close(std::exchange(descriptor_, -1));
    if (error != 0) fail("read", path_, error);
    throw Error(ExitCode::checkpoint, "{} is not a regular file", path_.string());
  }
  bytes_ = status.st_size;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void InputFile::read(int64_t offset, void* data, int64_t bytes) const {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t n = call_with_tries([&] { return ::pread(descriptor_, at, bytes, offset); });
    if (n < 0) fail("read", path_, errno);
    if (n == 0) {
      throw Error(ExitCode::checkpoint, "{} ends at byte {}, {} bytes too early", path_.string(), offset, bytes);
    }
    at += n;
    offset += n;
    bytes -= n;
  }
}

void sync_folder(const fs::path& folder) {
  const int descriptor = retry([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) fail("open", folder, errno);
  const int result = sync_descriptor(descriptor);
  const int error = errno;
  ::close(descriptor);
  if (result != 0) fail("sync", folder, error);
}

void create_folders(const fs::path& folder) {
  std::error_code unreadable;  // then mkdir fails too and says why
  if (folder.empty() || fs::is_directory(folder, unreadable)) return;
  const fs::path parent = folder.has_filename() ? folder.parent_path() : folder.parent_path().parent_path();
  if (parent != folder) create_folders(parent);
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) fail("create", folder, errno);
  sync_folder(parent.empty() ? fs::path(".") : parent);
}

void publish_folder(const fs::path& temporary, const fs::path& target) {
  bool replaces = false;
  with_more_tries([&] { replaces = is_there(target); });
  if (!replaces) {
    move_folder(temporary, target);
    sync_parent(target);
    return;
  }
  if (!exchange_folders(temporary, target)) return replace_in_two_steps(temporary, target);
  sync_parent(target);
  // If this fails, a temporary folder remains, which retention removes or reports.
  remove_folder(temporary);
}

std::string remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  return error ? fmt::format("cannot remove {}: {}", folder.string(), error.message()) : "";
}

void require_removed(const fs::path& folder) {
  with_more_tries([&] {
    std::error_code error;
    fs::remove_all(folder, error);
    if (error) fail("remove", folder, error.value());
  });
}

}  // namespace gptrain::checkpoint
