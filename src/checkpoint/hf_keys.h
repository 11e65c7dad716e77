// Keys of config.json that say the same as one of gptrain's.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "checkpoint/hf_names.h"

namespace gptrain::inline checkpoint {

struct HfKey {
  // Treatment of a key that config.json lacks: an error, the same default rule as gptrain's, or the class's own number
  // or flag below.
  enum class Absent : uint8_t { refused, same_rule, number, flag };

  const char* name;  // "num_hidden_layers"
  const char* path;  // "model.num_layers"
  Absent absent = Absent::refused;
  double number = 0;
  bool flag = false;
};

std::span<const HfKey> hf_keys(const HfClass& hf);

// Returns the keys of config.json without effect on the function that the classes compute.
std::span<const std::string_view> hf_idle_keys();

}  // namespace gptrain::checkpoint
