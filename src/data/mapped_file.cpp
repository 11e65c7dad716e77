#include "data/mapped_file.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "base/error.h"
#include "base/file_error.h"

namespace gptrain::inline data {

// An entry of the list that the signal handler searches. Never freed, but reused.
struct WatchedMapping {
  std::atomic<uintptr_t> begin = 0;  // 0: free
  std::atomic<uintptr_t> end = 0;
  std::atomic<int64_t> unreadable = -1;  // first byte that could not be read; -1: none
  bool is_copy = false;                  // the memory is not the file's: its file system has no mappings
  dev_t device = 0;
  ino_t inode = 0;
  std::atomic<int64_t> next_look = 0;  // seconds of the steady clock
  WatchedMapping* next = nullptr;
};

namespace {

struct FileDescriptor {
  // O_NONBLOCK: opening a pipe must not wait for a writer; it has no effect on files.
  explicit FileDescriptor(const std::filesystem::path& path)
      : number(call_with_tries([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); })) {}
  ~FileDescriptor() {
    if (number >= 0) ::close(number);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int number;
};

// Returns the size of the mapped file now, or `known` where nothing follows about it: it is looked at once a second,
// and another file may be at its path.
int64_t size_now(WatchedMapping& watched, const std::filesystem::path& path, int64_t known) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t second = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  if (watched.is_copy || second < watched.next_look) return known;
  watched.next_look = second + 1;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || status.st_dev != watched.device || status.st_ino != watched.inode)
    return known;
  return status.st_size;
}

[[noreturn]] void throw_read_error(const std::filesystem::path& path) {
  throw Error(ExitCode::data, "cannot read {}: {}", path.native(), std::generic_category().message(errno));
}

// Returns memory with the content of a file that cannot be mapped; MAP_FAILED, with errno, if it cannot be read.
void* read_whole(int file, size_t length, const std::filesystem::path& path) {
  const auto free_bytes = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (length > free_bytes) {
    throw Error(
        ExitCode::data,
        "cannot read {}: its file system has no mappings (mmap), and the memory has no room for the whole file: "
        "copy it to another file system",
        path.native());
  }
  void* const memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return memory;
  for (size_t done = 0; done < length;) {
    const ssize_t bytes = call_with_tries(
        [&] { return ::pread(file, static_cast<std::byte*>(memory) + done, length - done, static_cast<off_t>(done)); });
    if (bytes <= 0) {
      const int error = bytes < 0 ? errno : EIO;
      ::munmap(memory, length);
      errno = error;
      return MAP_FAILED;
    }
    done += static_cast<size_t>(bytes);
  }
  return memory;
}

std::atomic<WatchedMapping*> watched_mappings = nullptr;
std::atomic<uintptr_t> page_bytes = 0;

// Handles SIGBUS on the reading thread: maps zeros in place of the page, with which the thread continues until check().
void on_bus_error(int number, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (WatchedMapping* file = watched_mappings; file != nullptr; file = file->next) {
    const uintptr_t begin = file->begin, end = file->end;
    if (begin == 0 || at < begin || at >= end) continue;
    const uintptr_t page = at / page_bytes * page_bytes;
    void* const zeros =
        ::mmap(reinterpret_cast<void*>(page), page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == MAP_FAILED) break;
    int64_t none = -1;
    file->unreadable.compare_exchange_strong(none, static_cast<int64_t>(at - begin));
    errno = saved_errno;
    return;
  }
  // Not a watched file: the repeated access ends the process.
  std::signal(number, SIG_DFL);
}

void take_over_bus_errors() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
  });
}

WatchedMapping* watch(const void* memory, size_t bytes) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  take_over_bus_errors();
  WatchedMapping* entry = watched_mappings;
  while (entry != nullptr && entry->begin != 0) entry = entry->next;
  const bool is_new = entry == nullptr;
  if (is_new) entry = new WatchedMapping;
  entry->unreadable = -1;
  entry->end = reinterpret_cast<uintptr_t>(memory) + bytes;
  entry->begin = reinterpret_cast<uintptr_t>(memory);
  if (is_new) {
    entry->next = watched_mappings;
    watched_mappings = entry;
  }
  return entry;
}

}  // namespace

void MappedFile::Unmap::operator()(const std::byte* memory) const {
  watched->begin = 0;
  ::munmap(const_cast<std::byte*>(memory), size_bytes);
}

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const FileDescriptor file(path_);
  struct stat status {};
  if (file.number < 0 || ::fstat(file.number, &status) != 0) throw_read_error(path_);
  if (!S_ISREG(status.st_mode)) throw Error(ExitCode::data, "cannot read {}: not a regular file", path_.native());
  size_bytes_ = status.st_size;
  if (size_bytes_ == 0) return;  // an empty file cannot be mapped, and is never read
  const auto length = static_cast<size_t>(size_bytes_);
  // A private mapping, because some file systems have no shared ones. Nothing is ever written to it.
  void* memory = ::mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file.number, 0);
  const bool is_copy = memory == MAP_FAILED && errno == ENODEV;
  if (is_copy) memory = read_whole(file.number, length, path_);
  if (memory == MAP_FAILED) throw_read_error(path_);
  memory_ = {static_cast<const std::byte*>(memory), Unmap{length, watch(memory, length)}};
  WatchedMapping& watched = *memory_.get_deleter().watched;
  watched.is_copy = is_copy;
  watched.device = status.st_dev;
  watched.inode = status.st_ino;
}

void MappedFile::forget() const {
  if (memory_ != nullptr && !memory_.get_deleter().watched->is_copy)
    ::madvise(const_cast<std::byte*>(data()), static_cast<size_t>(size_bytes_), MADV_DONTNEED);
}

void MappedFile::check() const {
  if (memory_ == nullptr) return;
  WatchedMapping& watched = *memory_.get_deleter().watched;
  int64_t byte = watched.unreadable;
  // The rest of a shorter file's last page reads as zeros, without a signal.
  if (const int64_t size = size_now(watched, path_, size_bytes_); byte < 0 && size < size_bytes_) byte = size;
  if (byte < 0) return;
  throw Error(ExitCode::data,
              "{}, byte {}: cannot be read: the file was cut short while it was open, or its disk fails",
              path_.native(), byte);
}

}  // namespace gptrain::data
