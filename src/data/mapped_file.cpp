#include "data/mapped_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "base/error.h"

namespace gptrain {
namespace {

struct FileDescriptor {
  explicit FileDescriptor(const std::filesystem::path& path) : number(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~FileDescriptor() {
    if (number >= 0) ::close(number);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int number;
};

[[noreturn]] void throw_system_error(const std::filesystem::path& path) {
  throw Error(ExitCode::data, "cannot read {}: {}", path.native(), std::generic_category().message(errno));
}

}  // namespace

void MappedFile::Unmap::operator()(const std::byte* memory) const {
  ::munmap(const_cast<std::byte*>(memory), size_bytes);
}

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const FileDescriptor file(path_);
  struct stat status {};
  if (file.number < 0 || ::fstat(file.number, &status) != 0) throw_system_error(path_);
  if (!S_ISREG(status.st_mode)) throw Error(ExitCode::data, "cannot read {}: not a regular file", path_.native());
  size_bytes_ = status.st_size;
  if (size_bytes_ == 0) return;  // nothing can be mapped, and nothing will be read
  const auto length = static_cast<size_t>(size_bytes_);
  void* memory = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, file.number, 0);
  if (memory == MAP_FAILED) throw_system_error(path_);
  memory_ = {static_cast<const std::byte*>(memory), Unmap{length}};
}

}  // namespace gptrain
