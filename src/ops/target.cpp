#include "ops/target.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fmt/format.h>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <unistd.h>

#include "base/error.h"
#include "config/faults.h"

namespace gptrain {
namespace {

struct DataSheet {
  std::string_view name;
  double compute_capability;
  double memory_gb;  // 1e9 bytes: a few percent less than devices report, about what driver and context take
  double f32_tflops;
  double bf16_tflops;  // fp16 tensor cores where the device has no bf16
  double fp8_tflops;   // 0: it has none
  double gigabytes_per_second;
  double link_gigabytes_per_second;  // NVLink, in one direction; 0: it has none
};

// Dense rates. f32 is what f32 matrix products reach without reduced-precision inputs. (An H200 was measured at 790
// TFLOP/s bf16 on random data and 4300 GB/s; the table keeps the data sheet for all, so that shares compare.)
constexpr std::array data_sheets{
    DataSheet{"v100-32g", 7.0, 32, 15.7, 125, 0, 900, 150},  DataSheet{"rtx-2080-ti", 7.5, 11, 13.4, 54, 0, 616, 0},
    DataSheet{"a100-80g", 8.0, 80, 19.5, 312, 0, 2039, 300}, DataSheet{"h100", 9.0, 80, 67, 989, 1979, 3350, 450},
    DataSheet{"h200", 9.0, 141, 67, 989, 1979, 4800, 450},   DataSheet{"b200", 10.0, 180, 75, 2250, 4500, 8000, 900},
};

// The usual server of such devices.
constexpr int devices_per_node = 8;

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// First number of a one-line file; `missing` when there is none ("max", or no such file).
int64_t read_number(const std::string& path, int64_t missing) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : missing;
}

// The tightest memory limit of this process' control groups: version 2 has one per folder up to the root, version 1
// one in its own hierarchy. In a container the group's own folder may not be visible: then the root's files are its.
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
  // The call fails where there are more cores than a cpu_set_t holds.
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

Target this_machine(int num_threads) {
  Target target;
  target.name = "this-machine";
  target.kind = Target::Kind::cpu;
  target.memory_bytes = cgroup_memory_limit(static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
  target.num_threads = num_threads > 0 ? num_threads : usable_cores();
  return target;
}

Target find_target(std::string_view name) {
  const std::string wanted = lower_case(name);
  for (const DataSheet& sheet : data_sheets) {
    if (sheet.name == wanted) {
      Target target;
      target.name = sheet.name;
      target.kind = Target::Kind::gpu;
      target.memory_bytes = static_cast<int64_t>(sheet.memory_gb * 1e9);
      target.f32_flops = sheet.f32_tflops * 1e12;
      target.bf16_flops = sheet.bf16_tflops * 1e12;
      target.fp8_flops = sheet.fp8_tflops * 1e12;
      target.fp8_products = sheet.fp8_tflops > 0;
      target.bf16_products = sheet.compute_capability >= 8;
      target.bytes_per_second = sheet.gigabytes_per_second * 1e9;
      target.link_bytes_per_second = sheet.link_gigabytes_per_second * 1e9;
      target.ranks_per_node = devices_per_node;
      return target;
    }
  }
  const std::vector<std::string> names = target_names();
  const std::string nearest = nearest_word(wanted, names);
  const bool close = word_distance(wanted, nearest) <= static_cast<int64_t>(wanted.size());
  const std::string hint = close ? fmt::format(" (did you mean {}?)", nearest) : "";
  throw Error(ExitCode::usage, "unknown target \"{}\"{}: valid targets are {}", name, hint, join(names, ", "));
}

std::vector<std::string> target_names() {
  std::vector<std::string> names;
  for (const DataSheet& sheet : data_sheets) names.emplace_back(sheet.name);
  return names;
}

}  // namespace gptrain
