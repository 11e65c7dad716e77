// Errors of system calls on files, and further tries after those that may pass.
#pragma once

#include <cerrno>

namespace gptrain::inline base {

// Returns true for errors that network file systems return while a server does not answer: another try may succeed,
// and nothing follows from them about the file.
bool is_transient(int error);

// Returns true for errors after which another try may succeed: those of is_transient, and shortages and collisions that
// other processes and users end (open files, quotas, names in use).
bool may_pass(int error);

inline constexpr int most_tries = 3;  // tries of work that fails with an error that may pass

// Calls fsync, again if a signal interrupted it; returns 0, or -1 and errno. A file system that cannot sync, as some
// over FUSE and of network shares, counts as one that has: a warning says so once if the descriptor is a file's.
// Entries of its folders are durable by themselves.
int sync_descriptor(int descriptor);

// Waits before try `number` of the same work, from 2 on: half a second longer each time.
void wait_before_try(int number);

// Makes a system call that returns -1 and sets errno if it fails. Repeats it if a signal interrupted it, and, up to
// most_tries times, if its error may pass.
template <typename Call>
auto call_with_tries(const Call& call) {
  for (int tries = 1;;) {
    const auto result = call();
    if (result != -1) return result;
    if (errno == EINTR) continue;
    if (!may_pass(errno) || tries == most_tries) return result;
    wait_before_try(++tries);
  }
}

}  // namespace gptrain::base
