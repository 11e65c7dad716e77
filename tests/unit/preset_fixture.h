// Runs of presets, and a machine on which most of them fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/load.h"
#include "ops/target.h"

namespace gptrain::testing {

inline RunConfig preset_config(const std::string& name, const std::vector<std::string>& overrides = {},
                               int64_t world_size = 1) {
  return parse_config(R"({"model": {"preset": ")" + name + R"("}, "data": {"train": [{"path": "x"}]},
                          "batch": {"global": 8, "micro": 2}, "precision": {"compute": "bf16"},
                          "optimizer": {"lr": 1e-3}, "run": {"steps": 10, "out": "x"}})",
                      overrides, "test", world_size);
}

inline Target cpu_target() {
  Target target;
  target.name = "test";
  target.memory_bytes = int64_t{1} << 40;
  target.num_threads = 2;
  return target;
}

}  // namespace gptrain::testing
