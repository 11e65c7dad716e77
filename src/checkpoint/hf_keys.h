// Keys of config.json that say the same as one of gptrain's.
#pragma once

#include <cstdint>
#include <span>

#include "checkpoint/hf_names.h"

namespace gptrain {

struct HfKey {
  // What holds where config.json does not have the key: it must be there, gptrain's rule for what is not given is the
  // class's too, or a number of the class's own.
  enum class Absent : uint8_t { refused, same_rule, number, flag };

  const char* name;  // "num_hidden_layers"
  const char* path;  // "model.num_layers"
  Absent absent = Absent::refused;
  double number = 0;
  bool flag = false;
};

std::span<const HfKey> hf_keys(const HfClass& hf);

}  // namespace gptrain
