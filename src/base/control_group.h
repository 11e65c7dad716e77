// Limits of the control groups (cgroups) that this process is in: a container's, a job's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace gptrain::inline base {

// The tightest limits of a process's groups and of the groups around them. A limit that no group sets is the largest
// number of its type.
struct GroupLimits {
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();
  std::string memory_group;                     // folder of the group that sets memory_bytes; empty: none does
  int cores = std::numeric_limits<int>::max();  // quota of processor time over its period, rounded up
};

// Reads the limits of versions 1 and 2. `groups`: a process's list of its groups; `root`: where groups are mounted. In
// a container a group's own folder may be invisible; the root folder's files then hold its limits.
GroupLimits group_limits(const std::filesystem::path& groups = "/proc/self/cgroup",
                         const std::filesystem::path& root = "/sys/fs/cgroup");

// Returns the size of this machine's memory.
int64_t physical_memory_bytes();

// Returns the number of cores that this process may run on (sched_getaffinity), but at most GroupLimits::cores; at
// least 1.
int usable_cores();

// Returns the numbers of `count` cores that this process may run on, for the threads of its rank number `rank`: the
// last ones for rank 0, those before them for rank 1, and so on, from the last again if they run out. Empty if the
// process has at most `count` cores, or if count is 0.
std::vector<int> cores_of_threads(int64_t rank, int64_t count);
// Lets this thread, and threads that it starts, run on these cores only. No effect if `cores` is empty.
void bind_thread(const std::vector<int>& cores);

}  // namespace gptrain::base
