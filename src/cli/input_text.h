// Whole texts that a command reads.
#pragma once

#include <string>

namespace gptrain {

std::string read_standard_input();
// Error(usage), naming the file: it cannot be read.
std::string read_text_file(const std::string& path);

}  // namespace gptrain
