// Limits of memory and cores in the files of control groups of both versions.
#include <filesystem>
#include <limits>
#include <string>

#include "../temporary_folder.h"
#include "base/control_group.h"
#include "catch.h"

using namespace gptrain;
namespace fs = std::filesystem;

namespace {

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  write_file(path, text);
}

}  // namespace

TEST_CASE("version 2 of control groups: the tightest limits of a group and of those around it") {
  const TemporaryFolder folder;
  const fs::path root = folder.path() / "root", groups = folder.path() / "groups";
  write(groups, "0::/job/step\n");
  CHECK(group_limits(groups, root).cores == std::numeric_limits<int>::max());
  CHECK(group_limits(groups, root).memory_bytes == std::numeric_limits<int64_t>::max());
  CHECK(group_limits(groups, root).memory_group.empty());
  write(root / "job/step/cpu.max", "max 100000\n");
  write(root / "job/step/memory.max", "max\n");
  write(root / "job/cpu.max", "250000 100000\n");
  write(root / "job/memory.max", "4294967296\n");
  CHECK(group_limits(groups, root).cores == 3);
  CHECK(group_limits(groups, root).memory_bytes == int64_t{1} << 32);
  CHECK(group_limits(groups, root).memory_group == root / "job");
  // Within a container the root folder's files are the group's.
  write(root / "cpu.max", "50000 100000\n");
  write(root / "memory.max", "1000\n");
  CHECK(group_limits(groups, root).cores == 1);
  CHECK(group_limits(groups, root).memory_bytes == 1000);
  CHECK(usable_cores() >= 1);
}

TEST_CASE("version 1 of control groups: a hierarchy for each list of controllers") {
  const TemporaryFolder folder;
  const fs::path root = folder.path() / "root", groups = folder.path() / "groups";
  write(groups, "9:name=systemd:/\n4:memory:/job\n3:cpuset:/\n2:cpu,cpuacct:/job/step\nno group\n");
  write(root / "memory/job/memory.limit_in_bytes", "2000\n");
  write(root / "memory/memory.limit_in_bytes", "9223372036854771712\n");
  write(root / "cpu,cpuacct/job/step/cpu.cfs_quota_us", "-1\n");
  write(root / "cpu,cpuacct/job/step/cpu.cfs_period_us", "100000\n");
  CHECK(group_limits(groups, root).cores == std::numeric_limits<int>::max());
  write(root / "cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
  write(root / "cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  CHECK(group_limits(groups, root).cores == 4);
  CHECK(group_limits(groups, root).memory_bytes == 2000);
  CHECK(group_limits(groups, root).memory_group == root / "memory/job");
}
