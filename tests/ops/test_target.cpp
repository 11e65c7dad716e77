#include <algorithm>
#include <fstream>
#include <sched.h>

#include "base/control_group.h"
#include "catch.h"
#include "ops/target.h"

namespace gptrain {
namespace {

TEST_CASE("this machine") {
  const Target target = this_machine(0);
  CHECK(target.name == "this-machine");
  CHECK(target.kind == Target::Kind::cpu);
  CHECK(this_machine(5).num_threads == 5);
  CHECK(target.f32_flops == 0);

  int64_t physical_kib = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;)
    if (word == "MemTotal:" && meminfo >> physical_kib) break;
  REQUIRE(physical_kib > 0);
  CHECK(target.memory_bytes > 0);
  // The system keeps a part.
  CHECK(target.memory_bytes <= std::max(physical_kib * 1024 - (int64_t{1} << 30), physical_kib * 768));
}

TEST_CASE("threads follow the affinity of the process") {
  cpu_set_t all;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  CHECK(this_machine(0).num_threads == std::min(CPU_COUNT(&all), group_limits().cores));
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(this_machine(0).num_threads == 1);
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
}

}  // namespace
}  // namespace gptrain
