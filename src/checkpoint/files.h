// Files and folders that must be on the disk when a call returns. Every failure throws Error(checkpoint) with the path
// and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/error.h"

namespace gptrain {

// A failure that another try may not meet: EIO or ESTALE, as network file systems give them at times.
class TransientError : public Error {
 public:
  explicit TransientError(const std::string& message) : Error(ExitCode::checkpoint, message) {}
};

// A new file, written from front to back.
class SyncedFile {
 public:
  explicit SyncedFile(std::filesystem::path path);  // the file must not exist
  ~SyncedFile();
  SyncedFile(const SyncedFile&) = delete;
  SyncedFile& operator=(const SyncedFile&) = delete;

  // What follows goes to the disk without being copied into the system's cache of files, by O_DIRECT and an aligned
  // buffer of direct_buffer_bytes, where the file system is known to take it well (ext4, XFS); elsewhere nothing
  // changes. It is for large files: their write-back takes no memory and no processor from the training beside it. Call
  // it before the first write.
  void write_past_cache();
  static constexpr int64_t direct_buffer_bytes = int64_t{4} << 20;

  void write(const void* data, int64_t bytes);
  // After this the content survives a crash of the machine (its name does once the folder is synced). A file that is
  // destroyed without this call has an undefined content.
  void sync_and_close();

 private:
  struct Freed {
    void operator()(std::byte* memory) const;
  };

  void write_through(const void* data, int64_t bytes);
  void stop_past_cache();

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::unique_ptr<std::byte[], Freed> direct_;  // the buffer; null: through the cache
  int64_t num_buffered_ = 0;                    // bytes of it
};

// A file that is read at any place. Reading with pread, not mmap: a file that is cut short or fails under us is then an
// error with a message, not a SIGBUS.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  // Reads exactly `bytes` bytes from `offset` on; a file that ends before is an error.
  void read(int64_t offset, void* data, int64_t bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

// The entries of a folder survive a crash of the machine after this.
void sync_folder(const std::filesystem::path& folder);

// Creates a folder and those above it that are missing, and syncs the parent of each one made.
void create_folders(const std::filesystem::path& folder);

// Gives the finished folder `temporary` the name `target` in one step and syncs their common parent. If `target` exists
// the two change places, so that at every moment a complete folder bears the name; the old one is then deleted.
void publish_folder(const std::filesystem::path& temporary, const std::filesystem::path& target);

// Removes a folder (or file) and all in it. Returns an empty text, or what could not be removed and why; no error is
// thrown.
std::string remove_folder(const std::filesystem::path& folder);

}  // namespace gptrain
