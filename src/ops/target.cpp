#include "ops/target.h"

#include <algorithm>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <unistd.h>

namespace gptrain::inline ops {
namespace {

// RETURNS the first number of a one-line file; `missing` if there is none ("max", or no such file).
int64_t read_number(const std::string& path, int64_t missing) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : missing;
}

// RETURNS the tightest memory limit of this process' control groups: version 2 has one per folder up to the root,
// version 1 one in its own hierarchy. In a container the group's own folder may be invisible; the root folder's files
// then hold its limit.
int64_t cgroup_memory_limit(int64_t physical_bytes) {
  int64_t limit = physical_bytes;
  const auto look_up = [&](const std::string& root, std::string folder, const char* file) {
    while (true) {
      limit = std::min(limit, read_number(root + folder + "/" + file, physical_bytes));
      if (folder.empty()) return;
      folder.erase(folder.rfind('/'));
    }
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string folder = line.substr(second + 1);
    if (folder == "/") folder.clear();
    if (controllers.empty()) look_up("/sys/fs/cgroup", folder, "memory.max");
    if (controllers == "memory") look_up("/sys/fs/cgroup/memory", folder, "memory.limit_in_bytes");
  }
  return limit;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // The call fails if there are more cores than a cpu_set_t holds.
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

int64_t planned_part_of_host(int64_t bytes) { return bytes - std::min(outside_plans_bytes, bytes / 4); }

Target this_machine(int num_threads) {
  Target target;
  target.name = "this-machine";
  target.kind = Target::Kind::cpu;
  const int64_t physical_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  target.memory_bytes = planned_part_of_host(cgroup_memory_limit(physical_bytes));
  target.num_threads = num_threads > 0 ? num_threads : usable_cores();
  return target;
}

}  // namespace gptrain::ops
