// Options of the commands that read texts.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "data/ingest/inputs.h"

namespace gptrain::inline cli {

struct ReadingArguments {
  std::vector<std::string> fields;
  std::string format = "auto";
};

void add_reading_options(CLI::App& command, ReadingArguments& arguments);
// Throws Error(usage) for an invalid --field.
ReadOptions read_options(const ReadingArguments& arguments);
// Prints the formats of the inputs on standard error: lines of InputFormats.
void print_formats(const std::vector<std::string>& lines);

}  // namespace gptrain::cli
