// What is fuzzed: readers by name.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

struct Target {
  std::string name;  // of its folder in corpus/, too
  std::function<void(std::string_view)> read;
};
const std::vector<Target>& targets();

// Ends the process where a reader does something else than to accept the bytes or to throw an Error with a message.
void run(const Target& target, std::string_view bytes);

}  // namespace fuzz
