#include "base/file_error.h"

#include <chrono>
#include <thread>

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

void wait_before_try(int number) { std::this_thread::sleep_for(std::chrono::milliseconds(500) * (number - 1)); }

}  // namespace gptrain::base
