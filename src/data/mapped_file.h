// A file mapped into memory for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>

namespace gptrain::inline data {

struct WatchedMapping;

// A whole regular file, read-only, of its size at opening; a file replaced by rename is read as it was. If the file is
// truncated, or the disk fails, reads give zeros from there on and check() throws. The first object installs a handler
// for SIGBUS, which signals this; a SIGBUS of any other cause ends the process as usual.
class MappedFile {
 public:
  // Throws Error(data) with the file's name and the system's reason.
  explicit MappedFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }
  const std::byte* data() const { return memory_.get(); }

  // Throws Error(data), with file and byte, if any data read so far could not be read. Call before using the data.
  void check() const;

  // Frees the memory of pages that were read; they are read again when accessed.
  void forget() const;

  // Returns the value at `offset_bytes`, which may be unaligned but must be inside the file.
  template <typename T>
  T load(int64_t offset_bytes) const {
    T value;
    std::memcpy(&value, data() + offset_bytes, sizeof value);
    return value;
  }

 private:
  struct Unmap {
    size_t size_bytes;
    WatchedMapping* watched;
    void operator()(const std::byte* memory) const;
  };

  std::filesystem::path path_;
  int64_t size_bytes_ = 0;
  std::unique_ptr<const std::byte, Unmap> memory_{nullptr, Unmap{0, nullptr}};
};

}  // namespace gptrain::data
