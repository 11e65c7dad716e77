#include "storage/stored_files.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <stdexcept>
#include <string_view>
#include <sys/ioctl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/process_limits.h"
#include "base/units.h"
#include "storage/io_queue.h"

namespace gptrain::inline storage {
namespace {

constexpr std::string_view disk_key = "memory.disk_path";

std::string size_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

int64_t stored_bytes(const std::vector<StoredPiece>& pieces) {
  int64_t bytes = 0;
  for (const StoredPiece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

StoredFiles::StoredFiles(StoredFilesOptions options, std::vector<StoredPiece> pieces)
    : options_(std::move(options)), pieces_(std::move(pieces)), files_(options_.folders.size()) {
  if (files_.empty()) throw std::logic_error("stored files need a folder");
  lay_out();
  try {
    for (size_t file = 0; file < files_.size(); ++file) {
      open(file);
      reserve(file);
    }
  } catch (...) {
    close_all();
    throw;
  }
}

StoredFiles::StoredFiles(const StoredFiles& original, size_t num_pieces)
    : options_(original.options_),
      pieces_(original.pieces_),
      files_(original.files_.size()),
      blocks_(original.blocks_),
      first_block_(original.first_block_) {
  for (size_t i = 0; i < first_block_[num_pieces]; ++i)
    files_[blocks_[i].file].bytes = blocks_[i].offset + blocks_[i].bytes;
  // Clones whole blocks of the file system: of at most so many bytes.
  constexpr int64_t multiple = 64 << 10;
  try {
    for (size_t file = 0; file < files_.size(); ++file) {
      open(file);
      if (files_[file].bytes == 0) continue;
      const int64_t bytes = (files_[file].bytes + multiple - 1) / multiple * multiple;
      file_clone_range range{};
      range.src_fd = original.files_[file].descriptor;
      range.src_length = bytes < original.files_[file].bytes ? static_cast<uint64_t>(bytes) : 0;  // 0: to the end
      if (ioctl(files_[file].descriptor, FICLONERANGE, &range) != 0)
        throw Error(ExitCode::checkpoint, "memory.disk_clones: cannot clone a working file in {}: {}",
                    options_.folders[file].string(), std::strerror(errno));
    }
  } catch (...) {
    close_all();
    throw;
  }
}

StoredFiles::~StoredFiles() { close_all(); }

void StoredFiles::close_all() {
  for (const File& file : files_)
    if (file.descriptor >= 0) close(file.descriptor);
}

// Assigns each block a file and an offset: one file after the other, so that all drives work on a piece.
void StoredFiles::lay_out() {
  size_t file = 0;
  for (const StoredPiece& piece : pieces_) {
    first_block_.push_back(blocks_.size());
    for (int64_t at = 0; at < piece.bytes; at += block_bytes) {
      const int64_t bytes = std::min(block_bytes, piece.bytes - at);
      blocks_.push_back({.file = file, .offset = files_[file].bytes, .bytes = bytes, .crc = 0});
      files_[file].bytes += bytes;
      file = (file + 1) % files_.size();
    }
  }
  first_block_.push_back(blocks_.size());
}

// Removes the name at once, so that the file goes with the process, however that ends.
void StoredFiles::open(size_t file) {
  static std::atomic<int64_t> number = 0;
  const std::filesystem::path& folder = options_.folders[file];
  const auto refuse = [&](std::string_view what, int error) {
    throw Error(ExitCode::checkpoint, "{}: {} in {}: {}", disk_key, what, folder.string(), std::strerror(error));
  };
  auto& [descriptor, name, bytes] = files_[file];
  // A power loss may leave the name that a process with the same number had.
  do {
    name = (folder / fmt::format("gptrain-{}-{}-{}.state", getpid(), number++, options_.owner)).string();
    descriptor = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
  } while (descriptor < 0 && errno == EEXIST);
  if (descriptor < 0 && errno == EINVAL) {
    unlink(name.c_str());
    throw Error(ExitCode::checkpoint,
                "{}: the file system of {} does not allow reading and writing past the page cache (O_DIRECT); name a "
                "folder on a local disk (ext4, XFS)",
                disk_key, folder.string());
  }
  if (descriptor < 0) refuse("cannot make a working file", errno);
  if (unlink(name.c_str()) != 0) refuse("cannot remove the name of a working file", errno);
}

void StoredFiles::reserve(size_t file) const {
  const auto& [descriptor, name, bytes] = files_[file];
  const std::filesystem::path& folder = options_.folders[file];
  if (bytes == 0) return;
  int error = 0;
  do {
    error = posix_fallocate(descriptor, 0, bytes);
  } while (error == EINTR);
  if (error == EFBIG) require_file_size(bytes, fmt::format("a working file of {}", disk_key));
  if (error == ENOSPC || error == EFBIG || error == EDQUOT) {
    const bool has_freed = ftruncate(descriptor, 0) == 0;  // part of the space may have been reserved
    std::error_code ignored;
    const auto space = std::filesystem::space(folder, ignored);
    throw Error(ExitCode::checkpoint, "{}: {} has no room for {} of {} ({} are free): {}", disk_key, folder.string(),
                size_text(bytes), options_.purpose,
                ignored || !has_freed ? "?" : size_text(static_cast<int64_t>(space.available)), std::strerror(error));
  }
  if (error != 0)
    throw Error(ExitCode::checkpoint, "{}: cannot reserve a working file's space in {}: {}", disk_key, folder.string(),
                std::strerror(error));
}

std::string StoredFiles::text_of(size_t piece, size_t number) const {
  const Block& of = block(piece, number);
  return fmt::format("the working file {} ({}, block {} at byte {})", files_[of.file].name, pieces_[piece].name, number,
                     of.offset);
}

void StoredFiles::check(size_t piece, size_t number, const std::byte* data) const {
  const Block& of = block(piece, number);
  if (crc32c(data, of.bytes) == of.crc) return;
  throw Error(ExitCode::checkpoint,
              "{} has other bytes than were written there: its drive or memory is faulty; resume from the last "
              "checkpoint, on another drive if it happens again",
              text_of(piece, number));
}

std::unique_ptr<StoredFiles> StoredFiles::clone(size_t num_pieces) const {
  return std::unique_ptr<StoredFiles>(new StoredFiles(*this, num_pieces));
}

void StoredFiles::read(size_t piece, size_t number, std::byte* to) const {
  const Block& of = block(piece, number);
  const int error = transfer_all({.descriptor = descriptor(of), .offset = of.offset, .data = to, .bytes = of.bytes});
  if (error != 0) throw Error(ExitCode::checkpoint, "cannot read {}: {}", text_of(piece, number), std::strerror(error));
  check(piece, number, to);
}

std::string clone_obstacle(const std::vector<std::string>& folders) {
  try {
    const StoredFiles probe({.folders = {folders.begin(), folders.end()}, .owner = "probe"},
                            std::vector<StoredPiece>(folders.size(), {"a probe", page_bytes}));
    probe.clone(folders.size());
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace gptrain::storage
