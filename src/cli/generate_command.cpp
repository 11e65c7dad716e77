#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/output.h"
#include "base/text_file.h"
#include "cli/commands.h"
#include "cli/option_checks.h"
#include "train/generate.h"

namespace gptrain::inline cli {
namespace {

struct GenerateArguments {
  GenerateOptions options;
  std::vector<std::string> prompt_files;
  bool stream = false;
  bool ema = false;
};

// Reads a prompt from a file and drops the newline that editors put at the end.
std::string prompt_of_file(const std::string& path) {
  std::string text = path == "-" ? read_standard_input() : read_text_file(path);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

void generate_texts(GenerateArguments& arguments) {
  GenerateOptions& options = arguments.options;
  for (const std::string& path : arguments.prompt_files) options.prompts.push_back(prompt_of_file(path));
  if (options.prompts.empty()) throw Error(ExitCode::usage, "--prompt or --prompt-file is required");
  if (arguments.ema) options.weights = WhichWeights::averaged;
  const size_t count = options.prompts.size();
  std::string text;
  size_t begun = 0;
  const auto end = [&] {
    if (begun > 0) write_result(text + "\n");
    text.clear();
  };
  generate(options, [&](size_t prompt, std::string_view piece) {
    if (prompt == begun) {
      end();
      ++begun;
      if (count > 1) print_out("{}--- prompt {} of {}\n", prompt > 0 ? Lines("\n") : Lines(), prompt + 1, count);
    }
    if (!arguments.stream) {
      text += piece;
      return;
    }
    write_result(piece);
    std::fflush(stdout);
  });
  end();
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  GenerateOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand("generate", "write text with a trained model");
  command->add_option("--checkpoint", options.checkpoint, "a checkpoint, or a run's folder (its newest)")
      ->required()
      ->type_name("DIR");
  command->add_option("--prompt", options.prompts, "beginning of the text; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command->add_option("--prompt-file", arguments->prompt_files, "a file that holds a prompt, or -; may be repeated")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command->add_option("--tokenizer", options.tokenizer, "as for data pack (default: the checkpoint's)")
      ->type_name("NAME");
  command->add_option("--tokens", options.tokens, "write at most N tokens for each prompt")
      ->check(whole_number_from(1))
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--temperature", options.temperature, "randomness of the draw; 0: always the likeliest token")
      ->check(number_from(0))
      ->capture_default_str()
      ->type_name("T");
  command->add_option("--top-k", options.top_k, "draw from the K likeliest; 0: from all")
      ->check(whole_number_from(0))
      ->capture_default_str()
      ->type_name("K");
  command->add_option("--seed", options.seed, "same seed, same text")
      ->check(whole_number_from(0))
      ->capture_default_str()
      ->type_name("S");
  command->add_flag("--ema", arguments->ema, "use the average of the weights (needs optimizer.ema)");
  command->add_flag("--stream", arguments->stream, "print each token as it comes");
  set_examples(command, {"gptrain generate --checkpoint runs/demo --prompt \"The \" --tokens 100"});
  command->callback([arguments] { generate_texts(*arguments); });
}

}  // namespace gptrain::cli
