// Reads whole texts for commands.
#pragma once

#include <string>

namespace gptrain {

std::string read_standard_input();
// Throws Error(usage), which names the file, if it cannot be read.
std::string read_text_file(const std::string& path);

}  // namespace gptrain
