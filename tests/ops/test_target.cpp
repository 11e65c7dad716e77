#include <fstream>
#include <sched.h>

#include "base/error.h"
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
  CHECK(target.memory_bytes <= physical_kib * 1024);
}

TEST_CASE("threads follow the affinity of the process") {
  cpu_set_t all;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  CHECK(this_machine(0).num_threads == CPU_COUNT(&all));
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(this_machine(0).num_threads == 1);
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
}

TEST_CASE("named targets") {
  const Target a100 = find_target("A100-80G");
  CHECK(a100.name == "a100-80g");
  CHECK(a100.kind == Target::Kind::gpu);
  CHECK(a100.memory_bytes == 80'000'000'000);
  CHECK(a100.bf16_flops == 312e12);
  CHECK(a100.bytes_per_second == 2039e9);
  for (const std::string& name : target_names()) {
    const Target target = find_target(name);
    CHECK(target.name == name);
    CHECK(target.bf16_flops > target.f32_flops);
    CHECK(target.f32_flops > 0);
    CHECK(target.fp8_products == (target.fp8_flops > target.bf16_flops));
    CHECK(target.fp8_products == (name == "h100" || name == "h200" || name == "b200"));
    CHECK(target.bf16_products == (name != "v100-32g" && name != "rtx-2080-ti"));
  }
}

TEST_CASE("an unknown target names the nearest and all valid ones") {
  try {
    find_target("a100-80gb");
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    CHECK(std::string(error.what()) ==
          "unknown target \"a100-80gb\" (did you mean a100-80g?): valid targets are v100-32g, rtx-2080-ti, a100-80g, "
          "h100, h200, b200");
  }
}

}  // namespace
}  // namespace gptrain
