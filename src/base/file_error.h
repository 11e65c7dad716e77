// Errors of system calls on files.
#pragma once

#include <cerrno>

namespace gptrain::inline base {

// Returns true for errors that network file systems return while a server does not answer: another try may succeed,
// and nothing follows from them about the file.
inline bool is_transient(int error) { return error == EIO || error == ESTALE || error == ETIMEDOUT; }

}  // namespace gptrain::base
