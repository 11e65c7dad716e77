// Checks of numbers on the command line, with messages that name the rule.
#pragma once

#include <CLI/CLI.hpp>

namespace gptrain {

CLI::Validator whole_number_from(int64_t least);  // "0 is not a whole number of at least 1"
CLI::Validator number_from(double least);         // "nan is not a number of at least 0"
CLI::Validator positive_number();                 // "0 is not a number above 0"

}  // namespace gptrain
