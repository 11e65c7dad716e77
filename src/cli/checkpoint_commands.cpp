#include <fmt/format.h>
#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "train/run_state.h"

namespace gptrain {

void add_checkpoint_commands(CLI::App& app) {
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "look at and verify checkpoints")->require_subcommand(1);
  auto path = std::make_shared<std::string>();
  CLI::App* inspect_command = checkpoint->add_subcommand("inspect", "step, samples and a table of tensors");
  inspect_command->add_option("DIR", *path, "a checkpoint, or a run's folder (its newest)")->required();
  inspect_command->callback([path] { fmt::print("{}", inspect_checkpoint(resolve_checkpoint(*path))); });
  CLI::App* verify_command = checkpoint->add_subcommand("verify", "check every file and checksum");
  verify_command->add_option("DIR", *path, "a checkpoint, or a run's folder (its newest)")->required();
  verify_command->callback([path] {
    const auto directory = resolve_checkpoint(*path);
    verify_checkpoint(directory);
    fmt::print("{}: sound\n", directory.string());
  });
}

}  // namespace gptrain
