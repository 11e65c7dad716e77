// A preload library that stands for file systems and clocks that lack something. FAULTS lists what, by words:
//   locks      there are none
//   shared     no shared mappings of files
//   mappings   no mappings of files at all, but for programs and libraries
//   stat       the status of FOLDER, of what is below and of all folders above it cannot be had: EIO
//   read_only  changes below FOLDER are refused with EROFS while the file FOLDER.ro exists
//   stale      the status of FOLDER and of what is below cannot be had while the file FOLDER.off exists: ESTALE
//   short      reads and writes below FOLDER move half of the bytes asked for
//   fsync      the first fsync of each file below FOLDER fails with EIO, and what was written is lost, as with NFS
//   unsynced   fsync of files and folders fails with EINVAL
//   close      the first close of each file written below FOLDER fails with EIO
//   clock      the time of day jumps by days at every call; the monotonic clock jumps ahead once, by an hour
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int has(const char* word) {
  const char* faults = getenv("FAULTS");
  return faults && strstr(faults, word);
}

static int refuse(int error) {
  errno = error;
  return -1;
}

// Whether the file FOLDER + `ending` exists.
static int has_mark(const char* ending) {
  char mark[PATH_MAX];
  snprintf(mark, sizeof mark, "%s%s", getenv("FOLDER"), ending);
  return syscall(SYS_faccessat, AT_FDCWD, mark, F_OK) == 0;
}

// Whether `path`, relative to `folder`, is FOLDER or below.
static int is_below(int folder, const char* path) {
  const char* below = getenv("FOLDER");
  if (!below) return 0;
  char from[PATH_MAX] = "", whole[2 * PATH_MAX];
  if (path[0] != '/') {
    char link[64];
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    const ssize_t length = readlink(link, from, sizeof from - 1);
    from[length > 0 ? length : 0] = 0;
  }
  snprintf(whole, sizeof whole, "%s/%s", from, path);
  const char* absolute = whole + (from[0] ? 0 : 1);
  const char end = absolute[strlen(below)];
  return strncmp(absolute, below, strlen(below)) == 0 && (end == 0 || end == '/');
}

// Whether a change at `path`, relative to `folder`, is to be refused.
static int is_read_only(int folder, const char* path) {
  return has("read_only") && has_mark(".ro") && is_below(folder, path);
}

static int is_file_read_only(int file) { return is_read_only(file, ""); }

// Whether this is the first call for the path of `file`, a file below FOLDER that is open for writing.
static int is_first(int file) {
  static char seen[64][PATH_MAX];
  static atomic_int count;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  struct stat status;
  if (length < 0 || !is_below(file, "") || syscall(SYS_fstat, file, &status) != 0 || !S_ISREG(status.st_mode) ||
      ((int)syscall(SYS_fcntl, file, F_GETFL) & O_ACCMODE) == O_RDONLY)
    return 0;
  path[length] = 0;
  for (int i = 0; i < count && i < 64; ++i)
    if (strcmp(seen[i], path) == 0) return 0;
  strcpy(seen[count++ % 64], path);
  return 1;
}

static size_t half_if_short(int file, size_t bytes) {
  return bytes > 1 && file > 2 && has("short") && is_below(file, "") ? (bytes + 1) / 2 : bytes;
}

int flock(int file, int operation) { return has("locks") ? refuse(ENOLCK) : REAL(flock)(file, operation); }

int fcntl64(int file, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  const int locks = command == F_OFD_SETLK || command == F_SETLK || command == F_OFD_SETLKW || command == F_SETLKW;
  if (locks && has("locks")) return refuse(ENOLCK);
  return REAL(fcntl64)(file, command, argument);
}
int fcntl(int file, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return fcntl64(file, command, argument);
}

void* mmap(void* at, size_t bytes, int access, int flags, int file, off_t offset) {
  const int is_program = access & PROT_EXEC;
  if (file >= 0 && !is_program && (has("mappings") || ((flags & MAP_SHARED) && has("shared")))) {
    errno = ENODEV;
    return MAP_FAILED;
  }
  return (void*)syscall(SYS_mmap, at, bytes, access, flags, file, offset);
}
void* mmap64(void* at, size_t bytes, int access, int flags, int file, off_t offset) {
  return mmap(at, bytes, access, flags, file, offset);
}

static int hides(const char* path) {
  const char* folder = getenv("FOLDER");
  if (!folder || !has("stat") || path[0] != '/') return 0;
  const size_t length = strlen(path), whole = strlen(folder);
  return strncmp(path, folder, length < whole ? length : whole) == 0;
}
static int is_stale(const char* path) { return has("stale") && has_mark(".off") && is_below(AT_FDCWD, path); }
int stat(const char* path, struct stat* status) {
  return hides(path) ? refuse(EIO) : is_stale(path) ? refuse(ESTALE) : REAL(stat)(path, status);
}
int stat64(const char* path, struct stat64* status) {
  return hides(path) ? refuse(EIO) : is_stale(path) ? refuse(ESTALE) : REAL(stat64)(path, status);
}
int lstat(const char* path, struct stat* status) { return hides(path) ? refuse(EIO) : REAL(lstat)(path, status); }
int lstat64(const char* path, struct stat64* status) { return hides(path) ? refuse(EIO) : REAL(lstat64)(path, status); }

int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  if ((flags & O_ACCMODE) != O_RDONLY && is_read_only(folder, path)) return refuse(EROFS);
  return (int)syscall(SYS_openat, folder, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return openat64(AT_FDCWD, path, flags, mode);
}
int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return openat64(AT_FDCWD, path, flags, mode);
}
int mkdir(const char* path, mode_t mode) {
  return is_read_only(AT_FDCWD, path) ? refuse(EROFS) : REAL(mkdir)(path, mode);
}
int rename(const char* from, const char* to) {
  return is_read_only(AT_FDCWD, from) || is_read_only(AT_FDCWD, to) ? refuse(EROFS) : REAL(rename)(from, to);
}
int unlink(const char* path) { return is_read_only(AT_FDCWD, path) ? refuse(EROFS) : REAL(unlink)(path); }
int rmdir(const char* path) { return is_read_only(AT_FDCWD, path) ? refuse(EROFS) : REAL(rmdir)(path); }
ssize_t write(int file, const void* data, size_t bytes) {
  return file > 2 && is_file_read_only(file) ? refuse(EROFS)
                                             : syscall(SYS_write, file, data, half_if_short(file, bytes));
}
ssize_t read(int file, void* data, size_t bytes) { return syscall(SYS_read, file, data, half_if_short(file, bytes)); }
ssize_t pread64(int file, void* data, size_t bytes, off_t offset) {
  return syscall(SYS_pread64, file, data, half_if_short(file, bytes), offset);
}
ssize_t pread(int file, void* data, size_t bytes, off_t offset) { return pread64(file, data, bytes, offset); }
int fsync(int file) {
  if (has("unsynced")) return refuse(EINVAL);
  if (!has("fsync") || !is_first(file)) return (int)syscall(SYS_fsync, file);
  syscall(SYS_ftruncate, file, 0);
  return refuse(EIO);
}
int close(int file) {
  const int fails = has("close") && file > 2 && is_first(file);
  const int result = (int)syscall(SYS_close, file);
  return fails ? refuse(EIO) : result;
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  static atomic_int calls;
  const int result = (int)syscall(SYS_clock_gettime, clock, time);
  if (!has("clock")) return result;
  const int call = atomic_fetch_add(&calls, 1);
  if (clock == CLOCK_REALTIME) time->tv_sec += (call % 3 - 1) * 400000;
  if (clock == CLOCK_MONOTONIC && call > 500) time->tv_sec += 3600;
  return result;
}
