// Checks of what options are given, with messages that name the rule.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace gptrain {

CLI::Validator whole_number_from(int64_t least);  // "0 is not a whole number of at least 1"
CLI::Validator number_from(double least);         // "nan is not a number of at least 0"
// "0 is not a number from 1e-12 to 1e+18": what is computed with it stays finite.
CLI::Validator positive_number();
CLI::Validator some_text();  // "is empty"

// An option and the file that it names; empty: none.
struct OutputPath {
  const char* option;
  const std::string& path;
};
// Error(usage): both name the same file.
void refuse_same_file(const OutputPath& first, const OutputPath& second);

}  // namespace gptrain
