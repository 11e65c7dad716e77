#include "base/file_lock.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>

namespace gptrain::inline base {
namespace {

bool has_no_locks(int error) {
  return error == ENOSYS || error == ENOLCK || error == EOPNOTSUPP || error == EINVAL || error == EBADF;
}

template <typename Call>
int error_of(const Call& call) {
  while (call() != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

std::error_code lock_file(int descriptor) {
  int error = error_of([&] { return ::flock(descriptor, LOCK_EX | LOCK_NB); });
  if (has_no_locks(error)) {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    error = error_of([&] { return ::fcntl(descriptor, F_OFD_SETLK, &whole); });
  }
  if (error == EACCES || error == EAGAIN) return std::make_error_code(std::errc::operation_would_block);
  if (has_no_locks(error)) return std::make_error_code(std::errc::not_supported);
  return {error, std::generic_category()};
}

}  // namespace gptrain::base
