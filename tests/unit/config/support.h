// Shared by the tests of the config.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "config/fields.h"
#include "config/load.h"

namespace gptrain::config_test {

// A valid, complete config: hidden 768, 12 heads, batch 16 in micro-batches of 8, 1000 steps.
inline const std::string base = R"({
  "model": {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "vocab_size": 257, "sequence_length": 256},
  "data": {"train": [{"path": "data/corpus/train"}]},
  "batch": {"global": 16, "micro": 8},
  "optimizer": {"lr": 0.001},
  "run": {"steps": 1000, "out": "runs/test"}
})";

// The same without the model, which a preset must give.
inline const std::string without_model = R"({
  "data": {"train": [{"path": "x"}]},
  "batch": {"global": 1},
  "optimizer": {"lr": 0.001},
  "run": {"steps": 1, "out": "x"}
})";

using Overrides = std::vector<std::string>;

inline RunConfig parse(const Overrides& overrides, const std::string& text = base, int64_t world_size = 1) {
  return parse_config(text, overrides, "test.json", world_size);
}

// Returns the message of the refusal, which must be that of a bad config; empty if the config is accepted.
inline std::string refusal(const std::string& text, const Overrides& overrides = {}, int64_t world_size = 1) {
  try {
    parse_config(text, overrides, "test.json", world_size);
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::usage);
    return error.what();
  }
  return {};
}

// Returns the refusal of the base config with overrides.
inline std::string fault(const Overrides& overrides) { return refusal(base, overrides); }

// Returns every value of a config, unused ones included.
inline Json all_values(const RunConfig& config) {
  Json values = Json::object();
  for (const Field& field : fields()) {
    if (field.get) values[field.path] = field.get(config);
  }
  return values;
}

}  // namespace gptrain::config_test
