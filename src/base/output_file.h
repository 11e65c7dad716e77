// Files that are written whole: records that reach the kernel in one write, and files that appear only when complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace gptrain::inline base {

// An unbuffered file for writing. The kernel has the data when write() returns, so a process that is killed later loses
// none. Movable, not copyable; the destructor closes the file. All methods throw Error(code), with the file's name and
// the system's reason, e.g. when the disk is full.
class OutputFile {
 public:
  enum class Mode {
    append,     // created where missing
    overwrite,  // created where missing, emptied where present
    create,     // must not exist yet
  };

  OutputFile(std::filesystem::path path, Mode mode, ExitCode code = ExitCode::usage);
  // Names `shown` in messages instead of the path of a temporary file.
  OutputFile(std::filesystem::path path, Mode mode, ExitCode code, std::filesystem::path shown);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(OutputFile&&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);
  // Calls fsync, and again after an error that may pass. The system may have dropped data by then: `repair` is called
  // before the next try, and returns false if the content cannot be written again.
  void sync(const std::function<bool()>& repair = [] { return true; });
  void replace(std::string_view bytes);  // replaces the content
  // Returns true if `path` leads to this file, and the file has all that was written.
  bool is_at(const std::filesystem::path& path) const;
  // Returns true if the file is at its own path, or if this cannot be found out now.
  bool is_in_place() const;
  const std::filesystem::path& path() const { return path_; }
  ExitCode code() const { return code_; }

 private:
  std::filesystem::path path_;
  std::filesystem::path shown_;  // path in messages
  ExitCode code_;
  int descriptor_ = -1;
  int64_t end_ = 0;  // least size of the file: its size when opened, and the bytes written since
};

// Collects the new content of `path` in a temporary file beside it. commit() syncs that file and renames it to `path`;
// without commit() the destructor removes it and `path` is unchanged. Content of up to 64 MiB is written again if the
// sync fails with an error that may pass. Throws as OutputFile does.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path, ExitCode code = ExitCode::usage);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  void commit();

 private:
  std::filesystem::path path_;
  OutputFile temporary_;
  std::optional<std::string> content_ = "";  // none if it is too long
  bool committed_ = false;
};

// Removes a symbolic link that leads nowhere: writing would create the file that it names, somewhere else.
void remove_lost_link(const std::filesystem::path& path);

// Throws as AtomicFile does where `path` could not be written, or is a folder. Call it before the work whose result the
// file is to hold.
void check_can_write(const std::filesystem::path& path, ExitCode code);

}  // namespace gptrain::base
