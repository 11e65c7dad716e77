#include "train/folder.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/error.h"
#include "base/file_error.h"
#include "base/file_lock.h"
#include "base/output.h"
#include "base/output_file.h"
#include "base/units.h"
#include "checkpoint/files.h"
#include "checkpoint/folder.h"

namespace gptrain::inline train {

namespace fs = std::filesystem;

FolderLock::FolderLock(const fs::path& out) : out_(out), path_(out / ".lock") {
  std::error_code no_working_folder;
  absolute_ = fs::absolute(out, no_working_folder);
  // Another run may have made the folder. If it is refused, it may remove the folder between any two of these calls.
  constexpr int max_attempts = 100;
  std::error_code fault;
  bool made = false;
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    note_missing_folders(out);
    fs::create_directories(out, fault);
    made = !fault;
    if (made) fault = lock();
    if (!fault) {
      folder_ = call_with_tries([&] { return open(out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
      return;
    }
    if (fault == std::errc::operation_would_block)
      throw Error(ExitCode::usage, "run.out = {}: another gptrain is running in this folder", out.string());
    // create_directories also reports file_exists if the folder is removed during the call.
    if (fault != std::errc::no_such_file_or_directory && fault != std::errc::not_a_directory &&
        fault != std::errc::file_exists)
      break;
  }
  remove_what_was_made();
  throw Error(ExitCode::usage, "run.out: cannot {} {}: {}", made ? "write" : "create", (made ? path_ : out).string(),
              fault.message());
}

void FolderLock::note_missing_folders(const fs::path& out) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path folder = out; !folder.empty() && !fs::exists(folder, error); folder = folder.parent_path()) {
    if (folder == folder.parent_path()) break;
    missing.push_back(folder);
  }
  // The longest list counts: outer folders that an earlier attempt made may still be there.
  if (missing.size() > made_folders_.size()) made_folders_ = std::move(missing);
}

std::error_code FolderLock::lock() {
  const auto fault = [] { return std::error_code(errno, std::generic_category()); };
  for (;;) {
    remove_lost_link(path_);
    made_lock_ = true;
    descriptor_ = call_with_tries([&] { return open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
    if (descriptor_ < 0 && errno == EEXIST) {
      made_lock_ = false;
      descriptor_ = call_with_tries([&] { return open(path_.c_str(), O_RDWR | O_CLOEXEC); });
      // Another user of the group may have made it; the right to read is enough for flock.
      if (descriptor_ < 0 && errno == EACCES) descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    }
    if (descriptor_ < 0) return fault();
    const std::error_code why = lock_file(descriptor_);
    is_protected_ = why != std::errc::not_supported;
    if (why && is_protected_) {
      close(std::exchange(descriptor_, -1));
      return why;
    }
    // The process that had the lock before may have removed its file, so another process could make and lock a new one.
    struct stat ours {
    }, there{};
    errno = 0;
    if (fstat(descriptor_, &ours) == 0 && stat(path_.c_str(), &there) == 0 && ours.st_ino == there.st_ino) return {};
    const std::error_code unknown = fault();
    close(std::exchange(descriptor_, -1));
    if (unknown && unknown != std::errc::no_such_file_or_directory && unknown != std::errc::not_a_directory)
      return unknown;
  }
}

FolderLock::~FolderLock() {
  if (!kept_) remove_what_was_made();
  if (folder_ >= 0) close(folder_);
  close(descriptor_);
}

void FolderLock::keep() {
  kept_ = true;
  if (!is_protected_) {
    print_err(
        "warning: run.out = {}: its file system has no locks, so that nothing keeps a second run out of the folder\n",
        out_.string());
  }
  for (const fs::path& folder : made_folders_) {
    const fs::path parent = folder.parent_path();
    sync_folder(parent.empty() ? fs::path(".") : parent);
  }
}

bool FolderLock::is_there(const fs::path& path) const {
  struct stat ours {
  }, there{};
  return fstat(folder_, &ours) == 0 && stat(path.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
         ours.st_ino == there.st_ino;
}

// Returns true if the file system does not say now where the folder is.
bool FolderLock::is_unanswered() const {
  struct stat status {};
  // ESTALE of an open folder is an answer: another machine has removed it.
  if (fstat(folder_, &status) != 0 && errno != ESTALE && is_transient(errno)) return true;
  return stat(out_.c_str(), &status) != 0 && is_transient(errno);
}

// Locks the folder again if its lock's file was removed. Returns true if another process has locked it meanwhile.
bool FolderLock::is_taken_over() {
  struct stat ours {
  }, there{};
  if (fstat(descriptor_, &ours) != 0) return false;
  const bool found = stat(path_.c_str(), &there) == 0;
  if (found ? ours.st_dev == there.st_dev && ours.st_ino == there.st_ino : is_transient(errno)) return false;
  // Another folder at the path has a lock of its own, or none.
  if (!is_there(out_)) return false;
  const int before = descriptor_;
  const std::error_code fault = lock();
  if (!fault) {
    close(before);
    print_err("warning: {} was removed while the run held it; the run has made it again\n", path_.string());
    return false;
  }
  descriptor_ = before;
  return fault == std::errc::operation_would_block;
}

bool FolderLock::is_removed() const {
  struct stat ours {};
  return fstat(folder_, &ours) != 0 || ours.st_nlink == 0;
}

// Returns true if the folder's content is lost once no process has it open.
bool FolderLock::is_in_memory() const {
  struct statfs system {};
  return fstatfs(folder_, &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
}

// Returns the folder's path now; if it has none, as after an unmount, its path through this process's descriptor, which
// other ranks of this machine can use too.
fs::path FolderLock::found_at() const {
  const fs::path by_descriptor = fmt::format("/proc/{}/fd/{}", getpid(), folder_);
  std::error_code unknown;
  const fs::path now = fs::read_symlink(by_descriptor, unknown);
  return !unknown && is_there(now) ? now : by_descriptor;
}

std::string FolderLock::whats_wrong() {
  if (folder_ < 0 || is_unanswered()) return "";
  if (is_there(out_)) {
    if (is_taken_over()) return "was taken by another gptrain, after its .lock was removed";
    if (is_there(out_)) return "";
  }
  // An answer may have failed to come between two looks.
  if (is_unanswered() || is_there(out_)) return "";
  if (is_removed()) return "was removed while the run wrote to it";
  const fs::path now = found_at();
  return is_out_of_sight(now) ? "is no longer the run's folder: that was unmounted, or a mount hides it"
                              : fmt::format("is no longer the run's folder, which is now {}", now.string());
}

bool FolderLock::is_out_of_sight(const fs::path& path) { return path.string().starts_with("/proc/"); }

std::vector<fs::path> FolderLock::places_to_save() const {
  if (folder_ < 0) return {out_};
  if (is_there(out_)) return {out_, plain_path(out_).string() + ".saved"};
  std::vector<fs::path> folders;
  if (const fs::path now = found_at(); !is_removed() && !(is_out_of_sight(now) && is_in_memory()))
    folders.push_back(now);
  std::error_code error, no_working_folder;
  static_cast<void>(fs::current_path(no_working_folder));
  const fs::path& path = no_working_folder ? absolute_ : out_;
  if (!fs::exists(path, error) || (fs::is_directory(path, error) && fs::is_empty(path, error))) folders.push_back(path);
  folders.emplace_back(plain_path(path).string() + ".saved");
  return folders;
}

void FolderLock::remove_what_was_made() const {
  std::error_code error;
  // In a folder that this run made, the lock file belongs to another run that was refused.
  const bool is_ours = made_lock_ || !made_folders_.empty();
  if (descriptor_ >= 0 && is_ours) fs::remove(path_, error);
  // A folder that has something in it stays.
  for (const fs::path& folder : made_folders_) rmdir(folder.c_str());
}

void FolderWatch::look() {
  if (lock_ == nullptr || !fault_.empty()) return;
  if (const std::string wrong = lock_->whats_wrong(); !wrong.empty())
    fault_ = fmt::format("run.out = {}: {}", lock_->out().string(), wrong);
}

fs::path FolderWatch::place_to_save() {
  look();
  if (lock_ == nullptr || fault_.empty()) return out_;
  if (places_.empty()) places_ = lock_->places_to_save();
  return places_.front();
}

bool FolderWatch::has_other_place(const std::string& fault) {
  fail(fault);
  if (places_.empty() && lock_ != nullptr) places_ = lock_->places_to_save();
  if (places_.empty()) return false;
  if (lock_ != nullptr && places_.front() != lock_->out()) {
    std::error_code not_empty;
    fs::remove(checkpoints_folder(places_.front()), not_empty);
    fs::remove(places_.front(), not_empty);
  }
  if (places_.size() < 2) return false;
  places_.erase(places_.begin());
  return true;
}

std::string checkpoint_shortage(const CheckpointConfig& saving, const RunSettings& run, int64_t step,
                                int64_t num_checkpoints, int64_t bytes, const fs::space_info& space) {
  // With checkpoint.every_seconds there may be one after each step.
  const int64_t steps = run.steps - step;
  const int64_t every = saving.every_seconds > 0 ? 1 : saving.every_steps;
  const int64_t keep_last = saving.keep_last;
  const int64_t to_come = steps > 0 ? (every > 0 ? (steps - 1) / every + 1 : 1) : 0;
  const int64_t more = std::min(to_come, keep_last + 1 - std::min(num_checkpoints, keep_last));
  // Doubles, because the bytes of many large checkpoints can exceed 63 bits.
  const auto one = static_cast<double>(bytes), all = one * static_cast<double>(more);
  // `available` leaves out the blocks that are reserved for root, although root may use them.
  if (more > 0 && one > static_cast<double>(space.free))
    throw Error(ExitCode::checkpoint,
                "run.out = {}: a checkpoint takes {}, and {} are free there: free space, or choose another run.out",
                run.out, format_bytes(one), format_bytes(static_cast<double>(space.free)));
  if (all <= static_cast<double>(space.available)) return "";
  return fmt::format(
      "run.out = {}: {} are free there, but {} of {} will take {} (checkpoint.keep_last = {}, and the one being "
      "written)",
      run.out, format_bytes(static_cast<double>(space.available)),
      format_counted(more, num_checkpoints > 0 ? "more checkpoint" : "checkpoint"), format_bytes(one),
      format_bytes(all), keep_last);
}

void write_whole_file(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace gptrain::train
