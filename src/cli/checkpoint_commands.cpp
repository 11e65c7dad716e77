#include <fmt/format.h>
#include <memory>
#include <string>

#include "base/output.h"
#include "base/progress.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_export.h"
#include "checkpoint/model_check.h"
#include "cli/commands.h"
#include "train/run_state.h"

namespace gptrain {
namespace {

struct ExportArguments {
  std::string checkpoint;
  std::string out;
  std::string dtype = "fp32";
};

void export_weights(const ExportArguments& arguments) {
  std::unique_ptr<Progress> bar;
  const DType dtype = arguments.dtype == "bf16" ? DType::bf16 : DType::f32;
  const HfExport written =
      export_hf(resolve_checkpoint(arguments.checkpoint), arguments.out, dtype, [&](int64_t done, int64_t total) {
        if (!bar) bar = std::make_unique<Progress>("exporting", total, ProgressUnit::bytes);
        bar->update(done);
      });
  if (bar) bar->finish();
  print_out("{}: {}, {}, {} parameters in {} ({})\n", arguments.out, written.architecture,
            format_counted(written.tensors, "tensor"), format_grouped(written.parameters), arguments.dtype,
            format_bytes(static_cast<double>(written.bytes)));
  if (!written.warning.empty()) print_err("warning: {}\n", written.warning);
  for (const std::string& key : written.left_out) {
    print_out("left out: {}, which acts in training only and has no place in a {}\n", key, written.architecture);
  }
}

}  // namespace

void add_checkpoint_commands(CLI::App& app) {
  CLI::App* checkpoint =
      app.add_subcommand("checkpoint", "look at, verify and export checkpoints")->require_subcommand(1);
  auto path = std::make_shared<std::string>();
  CLI::App* inspect_command = checkpoint->add_subcommand("inspect", "step, samples and a table of tensors");
  inspect_command->add_option("DIR", *path, "a checkpoint, or a run's folder (its newest)")->required();
  inspect_command->callback([path] { write_out(inspect_checkpoint(resolve_checkpoint(*path))); });
  CLI::App* verify_command = checkpoint->add_subcommand("verify", "check every file and checksum");
  verify_command->add_option("DIR", *path, "a checkpoint, or a run's folder (its newest)")->required();
  verify_command->callback([path] {
    const auto directory = resolve_checkpoint(*path);
    verify_checkpoint(directory);
    check_model(directory);
    print_out("{}: sound\n", directory.string());
  });
  auto exporting = std::make_shared<ExportArguments>();
  CLI::App* export_command = checkpoint->add_subcommand("export", "the weights as a Hugging Face folder");
  export_command->add_option("DIR", exporting->checkpoint, "a checkpoint, or a run's folder (its newest)")->required();
  export_command->add_option("--hf", exporting->out, "the folder to write, which must not exist")
      ->required()
      ->type_name("OUT");
  export_command
      ->add_option("--dtype", exporting->dtype, "of the weights: fp32 (default), the masters as they are, or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->type_name("DTYPE");
  export_command->callback([exporting] { export_weights(*exporting); });
}

}  // namespace gptrain
