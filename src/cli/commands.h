// The subcommands of gptrain. run_program (cli/command_line.h) adds them all and then parses the command line, which
// runs the chosen subcommand. Subcommands throw Error, whose ExitCode becomes the program's; `train` alone can end with
// another code than 0 without an exception, and sets `result`.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <string_view>

#include "base/error.h"

namespace gptrain::inline cli {

void add_train_command(CLI::App& app, ExitCode& result);
void add_data_commands(CLI::App& app);
void add_tokenizer_commands(CLI::App& data);  // under `data`
void add_token_file_commands(CLI::App& data);
void add_checkpoint_commands(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_config_commands(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_bench_storage_command(CLI::App& bench);  // under `bench`
void add_plan_command(CLI::App& app);

// Shows command lines at the end of a command's help. tests/cli/help_cases.py runs them.
void set_examples(CLI::App* command, std::initializer_list<std::string_view> examples);

}  // namespace gptrain::cli
