// A file mapped into memory for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>

namespace gptrain {

struct WatchedMapping;

// A whole regular file, read-only. The size is that at opening: a file that somebody replaces by rename stays as it
// was. One that somebody cuts short, or that the disk does not give, is read as zeros from there on: check() then
// throws. The first object takes over the signal SIGBUS, by which the system says so; one that comes of anything else
// ends the process, as it would have.
class MappedFile {
 public:
  // Throws Error(data), naming the file and the system's reason.
  explicit MappedFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }
  const std::byte* data() const { return memory_.get(); }

  // Throws Error(data), naming file and byte, if anything that was read so far could not be. Who reads calls it before
  // what was read is used.
  void check() const;

  // Gives back the memory that holds what was read; it is read again where it is asked for.
  void forget() const;

  // The value at `offset_bytes`, which needs no alignment but must lie inside the file.
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

}  // namespace gptrain
