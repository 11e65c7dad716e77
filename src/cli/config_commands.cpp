#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

#include "base/output.h"
#include "cli/commands.h"
#include "config/key_table.h"
#include "config/load.h"
#include "data/token_meta.h"
#include "data/token_set.h"

namespace gptrain::inline cli {
namespace {

// Sources that are there must hold no token outside the vocabulary, as far as their PREFIX.meta.json tells.
void check_tokens(const StepConfig& config) {
  for (const auto* sources : {&config.data.train, &config.data.validation}) {
    for (const DataSource& source : *sources) {
      for (const auto& file : token_files_of(source.path)) {
        if (const auto meta = read_token_meta(file))
          require_vocabulary(file.native(), meta->largest_id, config.model.vocab_size, ExitCode::usage);
      }
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
    command->add_option("--set", arguments->overrides, "set a config key (null: its default); repeatable")
        ->type_name("key.path=value")
        ->allow_extra_args(false);
  };
  CLI::App* check_command = config->add_subcommand("check", "report every fault of a config");
  add_file(check_command);
  set_examples(check_command, {"gptrain config check configs/demo.json --set optimizer.lr=1e-3"});
  check_command->callback([arguments] {
    check_tokens(load_config(arguments->file, arguments->overrides));
    print_out("{}: valid\n", arguments->file);
  });
  CLI::App* show_command = config->add_subcommand("show", "print every value, with presets and defaults");
  add_file(show_command);
  set_examples(show_command, {"gptrain config show configs/gpt3-13b.json"});
  show_command->callback([arguments] { write_json(show_config(load_config(arguments->file, arguments->overrides))); });
  CLI::App* schema_command = config->add_subcommand("schema", "print the JSON Schema of a run config");
  set_examples(schema_command, {"gptrain config schema"});
  schema_command->callback([] { write_json(config_schema()); });
  CLI::App* keys_command =
      config->add_subcommand("keys", "print every key with its default and meaning, as a Markdown table");
  set_examples(keys_command, {"gptrain config keys"});
  keys_command->callback([] { write_out(config_key_table()); });
  set_examples(config, {"gptrain config check configs/demo.json"});
}

}  // namespace gptrain::cli
