#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

#include "base/output.h"
#include "cli/commands.h"
#include "config/key_table.h"
#include "config/load.h"
#include "data/token_meta.h"

namespace gptrain {
namespace {

// Sources that are there must hold no token outside the vocabulary, as far as their PREFIX.meta.json tells.
void check_tokens(const StepConfig& config) {
  for (const auto* sources : {&config.data.train, &config.data.validation}) {
    for (const DataSource& source : *sources) {
      if (const auto meta = read_token_meta(source.path))
        require_vocabulary(source.path, meta->largest_id, config.model.vocab_size, ExitCode::usage);
    }
  }
}

}  // namespace

void add_config_commands(CLI::App& app) {
  CLI::App* config = app.add_subcommand("config", "check and show run configs")->require_subcommand(1);
  struct Arguments {
    std::string file;
    std::vector<std::string> overrides;
  };
  auto arguments = std::make_shared<Arguments>();
  const auto add_file = [&](CLI::App* command) {
    command->add_option("CONFIG", arguments->file, "run config")->required();
    command->add_option("--set", arguments->overrides, "override a value (null: its default); may be repeated")
        ->type_name("key.path=value")
        ->allow_extra_args(false);
  };
  CLI::App* check_command = config->add_subcommand("check", "report every fault of a config");
  add_file(check_command);
  check_command->callback([arguments] {
    check_tokens(load_config(arguments->file, arguments->overrides));
    print_out("{}: valid\n", arguments->file);
  });
  CLI::App* show_command = config->add_subcommand("show", "every value after presets and defaults");
  add_file(show_command);
  show_command->callback([arguments] { write_out(show_config(load_config(arguments->file, arguments->overrides))); });
  config->add_subcommand("schema", "JSON schema of the config")->callback([] { write_out(config_schema()); });
  config->add_subcommand("keys", "every key with its default and meaning, as a Markdown table")->callback([] {
    write_out(config_key_table());
  });
}

}  // namespace gptrain
