// Locks of files, also where a file system has no flock.
#pragma once

#include <system_error>

namespace gptrain::inline base {

// Takes the exclusive lock of an open file without waiting: flock, or where the file system has none the lock of
// fcntl, for which the descriptor must be open for writing. Returns operation_would_block if somebody else has it, and
// not_supported if the file system has neither. The lock ends with the last descriptor of this opening.
std::error_code lock_file(int descriptor);

}  // namespace gptrain::base
