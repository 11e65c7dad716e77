#include <cstdio>
#include <fmt/format.h>
#include <memory>

#include "base/output.h"
#include "cli/commands.h"
#include "cli/numbers.h"
#include "train/generate.h"

namespace gptrain {

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "write text with a trained model");
  command->add_option("--checkpoint", options->checkpoint, "a checkpoint, or a run's folder (its newest)")
      ->required()
      ->type_name("DIR");
  command->add_option("--prompt", options->prompt, "how the text begins")->required()->type_name("TEXT");
  command->add_option("--tokens", options->tokens, "at most this many")
      ->check(whole_number_from(1))
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--temperature", options->temperature, "0: always the likeliest token")
      ->check(number_from(0))
      ->capture_default_str()
      ->type_name("T");
  command->add_option("--top-k", options->top_k, "draw from the K likeliest; 0: from all")
      ->check(whole_number_from(0))
      ->capture_default_str()
      ->type_name("K");
  command->add_option("--seed", options->seed, "same seed, same text")
      ->check(whole_number_from(0))
      ->capture_default_str()
      ->type_name("S");
  command->callback([options] {
    generate(*options, [](std::string_view text) {
      write_out(text);
      std::fflush(stdout);
    });
    print_out("\n");
  });
}

}  // namespace gptrain
