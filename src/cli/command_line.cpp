#include "cli/command_line.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fmt/format.h>
#include <initializer_list>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/output.h"
#include "base/process_limits.h"
#include "base/standard_streams.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/environment.h"

namespace gptrain::inline cli {
namespace {

// Returns a message about a word that no command has; empty if CLI11's own message is clear. `words`: those that CLI11
// could not use.
std::string unknown_word(const CLI::ParseError& error, const std::vector<std::string>& words) {
  if (words.empty()) return "";
  // CLI11 reports a missing subcommand before the unknown word in its place.
  if (error.get_name() == "RequiredError" &&
      std::string_view(error.what()).find("subcommand") != std::string_view::npos)
    return fmt::format("unknown command \"{}\" (see gptrain help)", words.front());
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) return "";
  const auto option =
      std::find_if(words.begin(), words.end(), [](const std::string& word) { return word.starts_with('-'); });
  if (option != words.end()) return fmt::format("unknown option {} (--help lists the command's options)", *option);
  return fmt::format("unexpected word \"{}\" (--help shows the form of the command)", words.front());
}

// Returns the first word of the form `--name=`, which CLI11 would take as `--name` with the next word as value; empty
// if there is none.
std::string_view option_without_value(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") break;
    if (word.starts_with("--") && word.find('=') == word.size() - 1) return word;
  }
  return {};
}

// Flushes standard output and returns the process's exit code: `code`, or that of a failed write.
int end_output(int code) {
  const std::string why = flush_out();
  if (why.empty()) return code;
  print_err("gptrain: cannot write to standard output: {}\n", why);
  return static_cast<int>(ExitCode::device);
}

// Adds `gptrain help COMMAND...`, which prints the same as `gptrain COMMAND... --help`.
void add_help_command(CLI::App& app) {
  auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand("help", "print this text, or that of a command");
  command->add_option("COMMAND", *words, "a command, such as train or data pack");
  set_examples(command, {"gptrain help train", "gptrain help data pack"});
  command->callback([&app, words] {
    const CLI::App* found = &app;
    std::string path = app.get_name();
    for (const std::string& word : *words) {
      const auto named = found->get_subcommands([&](const CLI::App* other) { return other->get_name() == word; });
      if (named.empty()) throw Error(ExitCode::usage, "unknown command \"{}\" (see gptrain help)", word);
      found = named.front();
      path += " " + word;
    }
    write_out(found->get_formatter()->make_help(found, path, CLI::AppFormatMode::Normal));
  });
}

}  // namespace

void set_examples(CLI::App* command, std::initializer_list<std::string_view> examples) {
  std::string text = examples.size() > 1 ? "Examples:\n" : "Example:\n";
  for (const std::string_view example : examples) text += fmt::format("  {}\n", example);
  command->footer(text + "gptrain help lists the exit codes.");
}

int run_program(int argc, char** argv) {
  if (const std::string fault = raise_process_limits(); !fault.empty()) {
    print_err("gptrain: {}\n", fault);
    return static_cast<int>(ExitCode::machine);
  }
  shorten_openmp_spinning(argv);
  give_streams_queues();
  open_missing_standard_streams();
  // Turns writes beyond the file size limit, or to a pipe without a reader, into errors of the write, like those of a
  // full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app("gptrain: pretrains GPT models from a JSON run config", "gptrain");
  app.set_version_flag("--version", version);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("gptrain: {}\nRun with --help for more information.\n", one_line(error.what()));
  });
  app.footer(
      "Example: gptrain train configs/gpt2-124m.json --dry-run\n"
      "\n"
      "Exit codes: 0 finished, 1 internal error, 2 bad command line or config,\n"
      "3 bad data, 4 bad checkpoint, 5 device or communication failure,\n"
      "6 training diverged, 7 this machine or build cannot do it,\n"
      "75 stopped by a signal after saving.");
  ExitCode result = ExitCode::finished;
  add_train_command(app, result);
  add_plan_command(app);
  add_data_commands(app);
  add_checkpoint_commands(app);
  add_generate_command(app);
  add_config_commands(app);
  add_bench_command(app);
  add_help_command(app);
  if (const std::string_view word = option_without_value(argc, argv); !word.empty()) {
    print_err("gptrain: {}: a value must follow\n", word);
    return static_cast<int>(ExitCode::usage);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (const std::string fault = unknown_word(error, app.remaining(true)); !fault.empty()) {
      print_err("gptrain: {}\n", fault);
      return static_cast<int>(ExitCode::usage);
    }
    // CLI11 reports help and version by this exception with code 0.
    std::ostringstream out, err;
    const int code = app.exit(error, out, err);
    write_out(out.str());
    write_err(err.str());
    return code == 0 ? end_output(0) : static_cast<int>(ExitCode::usage);
  } catch (const Error& error) {
    flush_out();
    if (*error.what() != '\0') print_err("gptrain: {}\n", error.lines());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    print_err("gptrain: out of memory: the machine has none left, or the process has reached its limit (ulimit -v)\n");
    return static_cast<int>(ExitCode::machine);
  } catch (const std::filesystem::filesystem_error& error) {
    flush_out();
    print_err("gptrain: cannot use {}: {}\n", error.path1().empty() ? "the working folder" : error.path1().string(),
              error.code().message());
    return static_cast<int>(ExitCode::checkpoint);
  } catch (const std::exception& error) {
    flush_out();
    print_err("gptrain: internal error: {}\n", error.what());
    return static_cast<int>(ExitCode::internal);
  }
  return end_output(static_cast<int>(result));
}

}  // namespace gptrain::cli
