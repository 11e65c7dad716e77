// The files that the words of a command line name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace gptrain {

struct TextInput {
  std::filesystem::path path;  // "-" is the standard input
  int64_t size_bytes = 0;      // 0 for the standard input
  int64_t modified = 0;        // the file system's time of the last change, in its own unit
};

// Each word is a file, "-", a folder (all files below it whose names do not begin with a dot, in the order of their
// paths) or, where no such file is there, a pattern with * ? [...] (its matches, in order). Throws Error(data) naming a
// word that is nothing of these, or a file that cannot be read.
std::vector<TextInput> expand_inputs(const std::vector<std::string>& words);

}  // namespace gptrain
