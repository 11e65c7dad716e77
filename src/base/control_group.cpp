#include "base/control_group.h"

#include <algorithm>
#include <fstream>
#include <sched.h>
#include <string>
#include <unistd.h>

namespace gptrain::inline base {
namespace {

namespace fs = std::filesystem;

// Returns the first number of a file; `missing` if there is none ("max", or no such file).
int64_t read_number(const fs::path& path, int64_t missing) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : missing;
}

// Lowers `limits.cores` to `quota` microseconds of processor time in each `period`. A quota below 1 means that
// there is none.
void limit_cores(GroupLimits& limits, int64_t quota, int64_t period) {
  if (quota < 1 || period < 1) return;
  limits.cores = static_cast<int>(std::min<int64_t>(limits.cores, (quota + period - 1) / period));
}

void read_memory(const fs::path& file, GroupLimits& limits) {
  const int64_t bytes = read_number(file, limits.memory_bytes);
  if (bytes >= limits.memory_bytes) return;
  limits.memory_bytes = bytes;
  limits.memory_group = file.parent_path().string();
}

// Reads the limits in one group's folder. `controllers`: a list as "cpu,cpuacct"; empty: version 2, with all of them.
void read_group(const fs::path& folder, const std::string& controllers, GroupLimits& limits) {
  if (controllers.empty()) {
    read_memory(folder / "memory.max", limits);
    std::ifstream file(folder / "cpu.max");
    int64_t quota = 0, period = 0;
    if (file >> quota >> period) limit_cores(limits, quota, period);
  } else if (controllers == "memory") {
    read_memory(folder / "memory.limit_in_bytes", limits);
  } else {
    limit_cores(limits, read_number(folder / "cpu.cfs_quota_us", 0), read_number(folder / "cpu.cfs_period_us", 0));
  }
}

}  // namespace

GroupLimits group_limits(const fs::path& groups, const fs::path& root) {
  GroupLimits limits;
  std::ifstream file(groups);
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path mounted = root / controllers;
    // Version 1 has a hierarchy for each list of controllers, version 2 one. The groups around a group are its parents.
    for (fs::path folder = line.substr(second + 1);; folder = folder.parent_path()) {
      read_group(mounted / folder.relative_path(), controllers, limits);
      if (folder == folder.parent_path()) break;
    }
  }
  return limits;
}

int64_t physical_memory_bytes() { return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE); }

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // The call fails if there are more cores than a cpu_set_t holds.
  const int cores =
      sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, std::min(cores, group_limits().cores));
}

std::vector<int> cores_of_threads(int64_t rank, int64_t count) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::vector<int> all, chosen;
  for (int core = CPU_SETSIZE - 1; core >= 0; --core)
    if (CPU_ISSET(core, &set)) all.push_back(core);
  const auto usable = static_cast<int64_t>(all.size());
  if (count <= 0 || count >= usable) return {};
  for (int64_t i = 0; i < count; ++i) chosen.push_back(all[static_cast<size_t>((rank * count + i) % usable)]);
  return chosen;
}

void bind_thread(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);  // a failure leaves the thread where it may run
}

}  // namespace gptrain::base
