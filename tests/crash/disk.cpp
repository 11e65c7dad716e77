// A preload library between a run and its disk, controlled by variables:
//   DISK_FOLDER    absolute path of the folder whose files it watches
//   DISK_LOG       file to which it writes every change, so that test_asynchronous.py can replay up to any point
//   DISK_DELAY_MS  delay of every sync of a checkpoint's file
//   DISK_FULL      part of a path: writes to matching files find the disk full
// A record is a line "OPERATION<tab>ARGUMENT<tab>ARGUMENT<tab>BYTES" followed by that many bytes. An open file has a
// number.
#undef _FILE_OFFSET_BITS  // else open is another name of open64
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace {

std::string variable(const char* name) {
  const char* const value = getenv(name);
  return value != nullptr ? value : "";
}

struct Disk {
  const std::string folder = variable("DISK_FOLDER"), full = variable("DISK_FULL");
  const long delay_ms = atol(variable("DISK_DELAY_MS").c_str());
  const int log = variable("DISK_LOG").empty() ? -1 : open_log();
  // Keeps changes and their records in one order.
  std::recursive_mutex mutex;
  std::map<int, std::pair<long, std::string>> files;  // by descriptor: number and path
  long num_opened = 0;

  static int open_log() {
    return static_cast<int>(
        syscall(SYS_openat, AT_FDCWD, variable("DISK_LOG").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  }
  void note(const std::string& operation, const std::string& first, const std::string& second = "",
            const std::string& bytes = "") const {
    if (log < 0) return;
    const std::string record =
        operation + "\t" + first + "\t" + second + "\t" + std::to_string(bytes.size()) + "\n" + bytes;
    for (size_t done = 0; done < record.size();)
      done += static_cast<size_t>(syscall(SYS_write, log, record.data() + done, record.size() - done));
  }
};

Disk& disk() {
  static Disk* const it = new Disk;  // never destroyed: files are closed after static destructors
  return *it;
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// Returns the path relative to the folder; empty if it is not in it.
std::string path_at(int folder, const char* path) {
  std::string whole = path;
  if (whole.empty() || whole[0] != '/') {
    char buffer[PATH_MAX] = "";
    const std::string link = folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/" + std::to_string(folder);
    const ssize_t length = readlink(link.c_str(), buffer, sizeof buffer - 1);
    whole = std::string(buffer, length > 0 ? static_cast<size_t>(length) : 0) + "/" + whole;
  }
  while (whole.find("/./") != std::string::npos) whole.erase(whole.find("/./"), 2);
  return whole.rfind(disk().folder + "/", 0) == 0 || whole == disk().folder ? whole : "";
}

int opened(int descriptor, const std::string& path, int flags) {
  if (descriptor < 0 || path.empty()) return descriptor;
  disk().files[descriptor] = {++disk().num_opened, path};
  const bool empties = (flags & O_TRUNC) != 0;
  const std::string kind = (flags & O_CREAT) != 0 ? empties ? "empty" : "create" : "look";
  disk().note(kind, path, std::to_string(disk().num_opened));
  return descriptor;
}

template <typename Call>
int change(const std::string& operation, const std::string& first, const std::string& second, Call call) {
  const std::lock_guard lock(disk().mutex);
  const int result = call();
  if (result == 0 && !first.empty()) disk().note(operation, first, second);
  return result;
}

}  // namespace

extern "C" {

int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  const std::lock_guard lock(disk().mutex);
  const int descriptor = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  return opened(descriptor, path_at(AT_FDCWD, path), flags);
}

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  return open64(path, flags, mode);
}

int close(int descriptor) {
  const std::lock_guard lock(disk().mutex);
  disk().files.erase(descriptor);
  return static_cast<int>(syscall(SYS_close, descriptor));
}

ssize_t write(int descriptor, const void* data, size_t bytes) {
  const std::unique_lock lock(disk().mutex);
  const auto file = disk().files.find(descriptor);
  if (file != disk().files.end() && !disk().full.empty() &&
      file->second.second.find(disk().full) != std::string::npos) {
    errno = ENOSPC;
    return -1;
  }
  const ssize_t written = syscall(SYS_write, descriptor, data, bytes);
  if (written <= 0) return written;
  const std::string text(static_cast<const char*>(data), static_cast<size_t>(written));
  if (file != disk().files.end()) disk().note("write", std::to_string(file->second.first), "", text);
  if (descriptor == STDOUT_FILENO) disk().note("say", "", "", text);
  return written;
}

int fsync(int descriptor) {
  std::unique_lock lock(disk().mutex);
  const auto found = disk().files.find(descriptor);
  const bool known = found != disk().files.end();
  const std::pair<long, std::string> file = known ? found->second : std::pair<long, std::string>();
  if (disk().delay_ms > 0 && file.second.find(".safetensors") != std::string::npos) {
    lock.unlock();
    const timespec time = {disk().delay_ms / 1000, disk().delay_ms % 1000 * 1000000};
    nanosleep(&time, nullptr);
    lock.lock();
  }
  const int result = static_cast<int>(syscall(SYS_fsync, descriptor));
  if (result == 0 && known) disk().note("sync", std::to_string(file.first));
  return result;
}

int rename(const char* from, const char* to) {
  const std::string first = path_at(AT_FDCWD, from), second = path_at(AT_FDCWD, to);
  return change("rename", first, second, [&] { return real<int (*)(const char*, const char*)>("rename")(from, to); });
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  const std::string first = path_at(from_folder, from), second = path_at(to_folder, to);
  return change(flags == RENAME_EXCHANGE ? "exchange" : "rename", first, second,
                [&] { return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags)); });
}

int mkdir(const char* path, mode_t mode) {
  return change("mkdir", path_at(AT_FDCWD, path), "",
                [&] { return real<int (*)(const char*, mode_t)>("mkdir")(path, mode); });
}

int unlinkat(int folder, const char* path, int flags) {
  return change("remove", path_at(folder, path), "",
                [&] { return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags)); });
}
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
  const std::string known = path_at(AT_FDCWD, path);
  return change("remove", known, "", [&] { return real<int (*)(const char*)>("remove")(path); });
}

}  // extern "C"
