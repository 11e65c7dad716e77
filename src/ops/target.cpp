#include "ops/target.h"

#include <algorithm>

#include "base/control_group.h"

namespace gptrain::inline ops {

int64_t planned_part_of_host(int64_t bytes) { return bytes - std::min(outside_plans_bytes, bytes / 4); }

Target this_machine(int num_threads) {
  Target target;
  target.name = "this-machine";
  target.kind = Target::Kind::cpu;
  target.memory_bytes = planned_part_of_host(std::min(physical_memory_bytes(), group_limits().memory_bytes));
  target.num_threads = num_threads > 0 ? num_threads : usable_cores();
  return target;
}

}  // namespace gptrain::ops
