// Validators of option values, with messages that name the rule. Numbers must be finite and fill the whole text.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace gptrain::inline cli {

CLI::Validator whole_number_from(int64_t least);  // "0 is not a whole number of at least 1"
CLI::Validator number_from(double least);         // "nan is not a number of at least 0"
// "0 is not a number from 1e-12 to 1e+18": the limits keep everything that is computed from the value finite.
CLI::Validator positive_number();
CLI::Validator some_text();  // "is empty"
// "1000 is not a whole number from 1 to 64, ...": the limit is 64 or, if that is more, 4 for each usable core.
CLI::Validator number_of_threads();

// An option and the file that it names, both borrowed. An empty path: the option is not given.
struct OutputPath {
  const char* option;
  const std::string& path;
};
// Throws Error(usage) if both options name the same file, be it by another path or a link.
void refuse_same_file(const OutputPath& first, const OutputPath& second);

}  // namespace gptrain::cli
