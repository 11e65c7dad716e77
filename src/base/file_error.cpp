#include "base/file_error.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "base/output.h"

namespace gptrain::inline base {

bool is_transient(int error) { return error == EIO || error == ESTALE || error == ETIMEDOUT; }

bool may_pass(int error) {
  switch (error) {
    case EAGAIN:
    case EBUSY:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOTEMPTY:
      return true;
    default:
      return is_transient(error);
  }
}

int sync_descriptor(int descriptor) {
  int result = 0;
  do result = ::fsync(descriptor);
  while (result != 0 && errno == EINTR);
  const int error = errno;
  if (result == 0 || (error != EINVAL && error != ENOSYS && error != EOPNOTSUPP)) return result;
  static std::atomic<bool> told = false;
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && !told.exchange(true)) {
    std::error_code unnamed;
    const std::filesystem::path file =
        std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), unnamed);
    print_err("warning: the file system of {} cannot sync files ({}): a loss of power may take what was written last\n",
              unnamed ? "a file that was written" : file.native(), std::strerror(error));
  }
  return 0;
}

void wait_before_try(int number) { std::this_thread::sleep_for(std::chrono::milliseconds(500) * (number - 1)); }

}  // namespace gptrain::base
