// The fuzzed readers, by name.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

struct Target {
  std::string name;  // also of its folder in corpus/
  std::function<void(std::string_view)> read;
};
const std::vector<Target>& targets();

// Aborts the process if a reader neither accepts the bytes nor throws an Error with a message.
void run(const Target& target, std::string_view bytes);

}  // namespace fuzz
