#include "cli/reading_options.h"

#include <map>

#include "base/output.h"

namespace gptrain::inline cli {
namespace {

const std::map<std::string, InputKind> kinds = {{"text", InputKind::text},
                                                {"jsonl", InputKind::jsonl},
                                                {"json", InputKind::json},
                                                {"csv", InputKind::csv},
                                                {"parquet", InputKind::rows}};

}  // namespace

void add_reading_options(CLI::App& command, ReadingArguments& arguments) {
  command.add_option("--field", arguments.fields, "member or column with the text; PATTERN=NAME: for those inputs")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command
      .add_option("--format", arguments.format, "format of all inputs: auto (default), text, jsonl, json, csv, parquet")
      ->check(CLI::IsMember({"auto", "text", "jsonl", "json", "csv", "parquet"}))
      ->type_name("FORMAT");
}

ReadOptions read_options(const ReadingArguments& arguments) {
  ReadOptions options;
  options.fields = TextFields(arguments.fields);
  if (arguments.format != "auto") options.kind = kinds.at(arguments.format);
  return options;
}

void print_formats(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) print_err("read: {}\n", line);
}

}  // namespace gptrain::cli
