// Files that are written whole: records that reach the kernel in one piece, and files that appear only when complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "base/error.h"

namespace gptrain {

// A file open for writing, without a buffer of its own: what write() was given is in the kernel's hands when it
// returns, so a process that is killed later loses none of it. Movable, not copyable; closes itself. All methods throw
// Error(code) naming the file and the system's reason: the code tells what could not be written, as on a full disk.
class OutputFile {
 public:
  enum class Mode {
    append,     // created where missing
    overwrite,  // created where missing, emptied where present
    create,     // must not exist yet
  };

  OutputFile(std::filesystem::path path, Mode mode, ExitCode code = ExitCode::usage);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(OutputFile&&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);
  void sync();  // fsync
  const std::filesystem::path& path() const { return path_; }
  ExitCode code() const { return code_; }

 private:
  std::filesystem::path path_;
  ExitCode code_;
  int descriptor_ = -1;
};

// Collects the new content of `path` in a temporary file beside it. commit() syncs it and renames it over `path`;
// without commit() the temporary file is removed and `path` stays as it was. Throws like OutputFile.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path, ExitCode code = ExitCode::usage);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes) { temporary_.write(bytes); }
  void commit();

 private:
  std::filesystem::path path_;
  OutputFile temporary_;
  bool committed_ = false;
};

// Throws as AtomicFile does where `path` could not be written, before the work whose result it is to hold.
void check_can_write(const std::filesystem::path& path, ExitCode code);

}  // namespace gptrain
