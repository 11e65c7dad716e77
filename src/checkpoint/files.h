// Files and folders that must be on the disk when a call returns. Every failure throws Error(checkpoint) with the path
// and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"

namespace gptrain::inline checkpoint {

// A failure that may not occur at another try (may_pass in base/file_error.h).
class TransientError : public Error {
 public:
  explicit TransientError(const std::string& message) : Error(ExitCode::checkpoint, message) {}
};

// Runs `attempt`, which starts its work anew, up to most_tries times (base/file_error.h): again, after a warning and a
// pause, if it fails with a TransientError. THROWS the last try's error, and any other error at once.
void with_more_tries(const std::function<void()>& attempt);

// A new file, written from front to back.
class SyncedFile {
 public:
  explicit SyncedFile(std::filesystem::path path);  // the file must not exist
  ~SyncedFile();
  SyncedFile(const SyncedFile&) = delete;
  SyncedFile& operator=(const SyncedFile&) = delete;

  // Makes later writes bypass the page cache, by O_DIRECT and an aligned buffer of direct_buffer_bytes, if the file
  // system is known to handle that well (ext4, XFS); else no effect. For large files, whose write-back would take
  // memory and processor time from the training. REQUIRES: called before the first write.
  void write_past_cache();
  static constexpr int64_t direct_buffer_bytes = int64_t{4} << 20;

  void write(const void* data, int64_t bytes);
  // Makes the content survive a crash of the machine (sync_folder does so for the name). Without this call the
  // destructor leaves a file with undefined content.
  void sync_and_close();

 private:
  struct Freed {
    void operator()(std::byte* memory) const;
  };

  void write_through(const void* data, int64_t bytes);
  void stop_past_cache();

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::unique_ptr<std::byte[], Freed> direct_;  // buffer of direct writes; null: cached writes
  int64_t num_buffered_ = 0;                    // bytes in `direct_`
};

// A file for random reads. Uses pread, not mmap, so that a file that is truncated or fails meanwhile gives an error
// message, not a SIGBUS.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  // Reads exactly `bytes` bytes from `offset` on. THROWS if the file ends before.
  void read(int64_t offset, void* data, int64_t bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

// Makes the entries of a folder survive a crash of the machine.
void sync_folder(const std::filesystem::path& folder);

// Creates a folder and those above it that are missing, and syncs the parent of each one made.
void create_folders(const std::filesystem::path& folder);

// Gives the finished folder `temporary` the name `target` in one step and syncs their common parent. If `target` exists
// the two exchange their names, so that at every moment a complete folder bears the name; the old one is then deleted,
// if it can be. If the file system cannot exchange names, a crash can leave no folder of the name. Tries more than
// once; THROWS Error(checkpoint) if it fails.
void publish_folder(const std::filesystem::path& temporary, const std::filesystem::path& target);

// Removes a folder (or file) and all in it; there may be none. Returns the name and the reason if something could not
// be removed, else empty; throws nothing.
std::string remove_folder(const std::filesystem::path& folder);

// As remove_folder, but tries more than once, and throws if something stays.
void require_removed(const std::filesystem::path& folder);

}  // namespace gptrain::checkpoint
