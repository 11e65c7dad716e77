// Limits of the control groups (cgroups) that this process is in: a container's, a job's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace gptrain::inline base {

// The tightest limits of a process's groups and of the groups around them. A limit that no group sets is the largest
// number of its type.
struct GroupLimits {
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();
  int cores = std::numeric_limits<int>::max();  // quota of processor time over its period, rounded up
};

// Reads the limits of versions 1 and 2. `groups`: a process's list of its groups; `root`: where groups are mounted. In
// a container a group's own folder may be invisible; the root folder's files then hold its limits.
GroupLimits group_limits(const std::filesystem::path& groups = "/proc/self/cgroup",
                         const std::filesystem::path& root = "/sys/fs/cgroup");

// Returns the number of cores that this process may run on (sched_getaffinity), but at most GroupLimits::cores; at
// least 1.
int usable_cores();

}  // namespace gptrain::base
