#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <numeric>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "base/directory.h"
#include "base/output.h"
#include "base/progress.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/compare.h"
#include "checkpoint/hf_export.h"
#include "checkpoint/hf_import.h"
#include "checkpoint/losses.h"
#include "checkpoint/model_check.h"
#include "checkpoint/upcycle.h"
#include "cli/commands.h"
#include "cli/option_checks.h"
#include "train/folder.h"
#include "train/run_state.h"

namespace gptrain::inline cli {
namespace {

struct ExportArguments {
  std::string checkpoint;
  std::string out;
  std::string dtype = "fp32";
  bool ema = false;
};

WhichWeights which_weights(bool ema) { return ema ? WhichWeights::averaged : WhichWeights::trained; }

void warn_of_rise(const std::filesystem::path& checkpoint) {
  if (const std::string warning = rise_warning(checkpoint); !warning.empty()) print_err("warning: {}\n", warning);
}

void export_weights(const ExportArguments& arguments) {
  std::unique_ptr<Progress> bar;
  const DType dtype = arguments.dtype == "bf16" ? DType::bf16 : arguments.dtype == "fp16" ? DType::f16 : DType::f32;
  const auto progress = [&](int64_t done, int64_t total) {
    if (!bar) bar = std::make_unique<Progress>("exporting", total, ProgressUnit::bytes);
    bar->update(done);
  };
  const std::filesystem::path checkpoint = resolve_checkpoint(arguments.checkpoint);
  const HfExport written = export_hf(checkpoint, arguments.out, dtype, which_weights(arguments.ema), progress);
  if (bar) bar->finish();
  warn_of_rise(checkpoint);
  print_out("{}: {}, {}, {} parameters in {} ({}{})\n", arguments.out, written.architecture,
            format_counted(written.tensors, "tensor"), format_grouped(written.parameters), arguments.dtype,
            format_bytes(static_cast<double>(written.bytes)),
            written.files > 1 ? fmt::format(" in {} files", written.files) : "");
  if (!written.warning.empty()) print_err("warning: {}\n", written.warning);
  if (!written.note.empty()) print_out("note: {}\n", written.note);
  for (const std::string& key : written.left_out) {
    print_out("left out: {}, which acts in training only and has no place in a {}\n", key, written.architecture);
  }
}

struct ImportArguments {
  std::string folder;
  std::string out;
  std::string precision = "fp32";
};

void import_weights(const ImportArguments& arguments) {
  std::unique_ptr<Progress> bar;
  const HfImport read =
      import_hf(arguments.folder, arguments.out, arguments.precision, [&](int64_t done, int64_t total) {
        if (!bar) bar = std::make_unique<Progress>("importing", total, ProgressUnit::bytes);
        bar->update(done);
      });
  if (bar) bar->finish();
  print_out("{}: {}, {}, {} parameters; train CONFIG --init-from {} starts a run from them\n", arguments.out,
            read.architecture, format_counted(read.tensors, "tensor"), format_grouped(read.parameters), arguments.out);
  for (const std::string& note : read.notes) print_out("note: {}\n", note);
}

void add_import_command(CLI::App& checkpoint) {
  auto arguments = std::make_shared<ImportArguments>();
  CLI::App* command = checkpoint.add_subcommand("import", "turn a Hugging Face folder into a checkpoint of step 0");
  command->add_option("--hf", arguments->folder, "the folder to read: config.json and safetensors")
      ->required()
      ->check(some_text())
      ->type_name("DIR");
  command->add_option("OUT", arguments->out, "the folder to write, which must not exist")
      ->required()
      ->check(some_text());
  command->add_option("--precision", arguments->precision, "precision.compute of the checkpoint's config: fp32 or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->type_name("WORD");
  set_examples(command, {"gptrain checkpoint import --hf demo-hf imported"});
  command->callback([arguments] { import_weights(*arguments); });
}

// A diverged state is no damaged one, and never called sound.
void verify(const std::filesystem::path& checkpoint, bool deep) {
  verify_structure(checkpoint);
  check_model(checkpoint);
  if (deep) write_out(tensor_table(checkpoint));
  verify_checkpoint(checkpoint);
  const std::string rise = rise_warning(checkpoint);
  if (has_lost_loss(checkpoint))
    throw Error(ExitCode::diverged, "{}: its files are whole and its numbers finite, but {}", checkpoint.string(),
                rise);
  print_out("{}: {}\n", checkpoint.string(), rise.empty() ? "sound" : "its files are whole and its numbers finite");
  if (!rise.empty()) print_err("warning: {}\n", rise);
}

void add_checkpoint_verify_command(CLI::App& checkpoint) {
  auto path = std::make_shared<std::string>();
  auto deep = std::make_shared<bool>(false);
  CLI::App* command = checkpoint.add_subcommand("verify", "check every file and checksum");
  command->add_option("DIR", *path, "a checkpoint, or a run's folder (its newest)")->required();
  command->add_flag("--deep", *deep, "also print norms, and how many numbers are not finite");
  set_examples(command, {"gptrain checkpoint verify runs/demo --deep"});
  command->callback([path, deep] { verify(resolve_checkpoint(*path), *deep); });
}

void add_diff_command(CLI::App& checkpoint) {
  auto first = std::make_shared<std::string>();
  auto second = std::make_shared<std::string>();
  CLI::App* command = checkpoint.add_subcommand("diff", "print the largest difference of two checkpoints, by tensor");
  command->add_option("A", *first, "a checkpoint, or a run's folder (its newest)")->required();
  command->add_option("B", *second, "another checkpoint or run's folder")->required();
  set_examples(command, {"gptrain checkpoint diff runs/demo/checkpoints/step-*"});
  command->callback(
      [first, second] { write_out(compare_checkpoints(resolve_checkpoint(*first), resolve_checkpoint(*second))); });
}

void add_average_command(CLI::App& checkpoint) {
  struct Arguments {
    std::vector<std::string> folders;
    std::vector<double> shares;
    std::string out;
    bool ema = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = checkpoint.add_subcommand("average", "write the mean of the weights of several checkpoints");
  command->add_option("DIR", arguments->folders, "checkpoints, or runs' folders (their newest)")->required();
  command->add_option("--out", arguments->out, "the folder to write, which must not exist")
      ->required()
      ->check(some_text());
  command->add_option("--shares", arguments->shares, "factor for each checkpoint, instead of the mean")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("A,B,...");
  command->add_flag("--ema", arguments->ema, "mean of the averages that optimizer.ema keeps, not of the weights");
  set_examples(command, {"gptrain checkpoint average runs/demo/checkpoints/step-* --out averaged"});
  command->callback([arguments] {
    std::vector<std::filesystem::path> checkpoints;
    for (const std::string& folder : arguments->folders) checkpoints.push_back(resolve_checkpoint(folder));
    average_checkpoints(checkpoints, arguments->shares, arguments->out, which_weights(arguments->ema));
    for (const std::filesystem::path& averaged : checkpoints) warn_of_rise(averaged);
    const double sum = std::accumulate(arguments->shares.begin(), arguments->shares.end(), 0.0);
    if (!arguments->shares.empty() && std::abs(sum - 1) > 0.02) {
      print_err("warning: --shares add up to {}, not to 1: the weights are {} times a mean\n", sum, sum);
    }
    print_out("{}: the weights of {} averaged\n", arguments->out,
              format_counted(std::ssize(checkpoints), "checkpoint"));
  });
}

void add_upcycle_command(CLI::App& checkpoint) {
  struct Arguments {
    std::string folder, moe, out;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = checkpoint.add_subcommand("upcycle", "make a mixture of experts of a dense model's weights");
  command->add_option("DIR", arguments->folder, "a checkpoint, or a run's folder (its newest)")->required();
  command->add_option("OUT", arguments->out, "the folder to write, which must not exist")
      ->required()
      ->check(some_text());
  command->add_option("--moe", arguments->moe, "model.moe of the mixture; its experts are copies of the FFN")
      ->required()
      ->check(some_text())
      ->type_name("JSON");
  set_examples(command, {R"(gptrain checkpoint upcycle runs/llama upcycled --moe '{"experts": 4, "top_k": 2}')"});
  command->callback([arguments] {
    const std::filesystem::path from = resolve_checkpoint(arguments->folder);
    const Upcycled made = upcycle_checkpoint(from, arguments->moe, arguments->out);
    warn_of_rise(from);
    print_out("{}: {} with {} experts each, {} parameters of {}; train CONFIG --init-from {} starts a run from them\n",
              arguments->out, format_counted(made.blocks, "block"), made.experts, format_grouped(made.parameters),
              format_grouped(made.dense_parameters), arguments->out);
    for (const std::string& note : made.notes) print_out("note: {}\n", note);
  });
}

// Whether every file can be opened; a manifest that is missing is no matter of permissions.
bool is_readable(const std::filesystem::path& checkpoint) {
  std::error_code error;
  const std::vector<std::filesystem::path> files = paths_in(checkpoint, error);
  return !error &&
         std::all_of(files.begin(), files.end(), [](const auto& file) { return ::access(file.c_str(), R_OK) == 0; });
}

void prune(const std::string& run, int64_t keep_last, int64_t keep_every) {
  const size_t before = list_checkpoints(run).size();
  const size_t abandoned = list_abandoned(run).size();
  if (before + abandoned == 0) throw Error(ExitCode::checkpoint, "{}: holds no checkpoints", run);
  const FolderLock lock(run);
  std::string warning = apply_retention(run, keep_last, keep_every);
  if (const std::string more = remove_abandoned(run); warning.empty()) warning = more;
  const std::vector<CheckpointInfo> left = list_checkpoints(run);
  print_out("{}: {} removed, {} kept\n", run, format_counted(static_cast<int64_t>(before - left.size()), "checkpoint"),
            left.size());
  const auto last = last_before_rise(run);
  const auto has_risen = [&](const CheckpointInfo& info) {
    return info.step > last->checkpoint.step && is_sound_checkpoint(info.path);
  };
  if (last && std::any_of(left.begin(), left.end(), has_risen))
    print_out("{} is kept: it is the last one before the loss rose\n", last->checkpoint.path.string());
  if (const size_t removed = abandoned - list_abandoned(run).size(); removed > 0)
    print_out("{}: {} removed that a resume had set aside\n", run,
              format_counted(static_cast<int64_t>(removed), "checkpoint"));
  for (const CheckpointInfo& info : left) {
    if (is_sound_checkpoint(info.path)) continue;
    std::error_code unknown;
    if (std::filesystem::is_regular_file(info.path, unknown)) {
      print_err("warning: {} is a file, no checkpoint: it is neither counted nor removed; remove it yourself\n",
                info.path.string());
    } else if (is_readable(info.path)) {
      print_err("warning: {} is damaged: it is neither counted nor removed; remove it yourself\n", info.path.string());
    } else {
      print_err("warning: {} cannot be read: it is neither counted nor removed; check its permissions\n",
                info.path.string());
    }
  }
  if (!warning.empty()) throw Error(ExitCode::checkpoint, "{}", warning);
}

void add_prune_command(CLI::App& checkpoint) {
  auto run = std::make_shared<std::string>();
  auto keep_last = std::make_shared<int64_t>(0);
  auto keep_every = std::make_shared<int64_t>(0);
  CLI::App* command = checkpoint.add_subcommand("prune", "remove older checkpoints of a run");
  command->add_option("RUN", *run, "a run's folder, which no process is training in")->required();
  command->add_option("--keep-last", *keep_last, "number of newest checkpoints to keep")
      ->required()
      ->check(whole_number_from(1))
      ->type_name("N");
  command->add_option("--keep-every", *keep_every, "also keep checkpoints of steps that are multiples of N")
      ->check(whole_number_from(1))
      ->type_name("N");
  set_examples(command, {"gptrain checkpoint prune runs/demo --keep-last 2 --keep-every 1000"});
  command->callback([run, keep_last, keep_every] { prune(*run, *keep_last, *keep_every); });
}

}  // namespace

void add_checkpoint_commands(CLI::App& app) {
  CLI::App* checkpoint =
      app.add_subcommand("checkpoint", "verify, compare, convert and remove checkpoints")->require_subcommand(1);
  auto path = std::make_shared<std::string>();
  CLI::App* inspect_command = checkpoint->add_subcommand("inspect", "print step, samples and a table of tensors");
  inspect_command->add_option("DIR", *path, "a checkpoint, or a run's folder (its newest)")->required();
  set_examples(inspect_command, {"gptrain checkpoint inspect runs/demo"});
  inspect_command->callback([path] { write_out(inspect_checkpoint(resolve_checkpoint(*path))); });
  add_checkpoint_verify_command(*checkpoint);
  auto exporting = std::make_shared<ExportArguments>();
  CLI::App* export_command = checkpoint->add_subcommand("export", "write the weights as a Hugging Face folder");
  export_command->add_option("DIR", exporting->checkpoint, "a checkpoint, or a run's folder (its newest)")->required();
  export_command->add_option("--hf", exporting->out, "the folder to write, which must not exist")
      ->required()
      ->check(some_text())
      ->type_name("OUT");
  export_command->add_option("--dtype", exporting->dtype, "dtype of the weights: fp32 (default: exact), bf16, or fp16")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->type_name("DTYPE");
  export_command->add_flag("--ema", exporting->ema, "write the average of the weights (needs optimizer.ema)");
  set_examples(export_command, {"gptrain checkpoint export runs/demo --hf demo-hf --dtype bf16"});
  export_command->callback([exporting] { export_weights(*exporting); });
  add_import_command(*checkpoint);
  add_diff_command(*checkpoint);
  add_average_command(*checkpoint);
  add_upcycle_command(*checkpoint);
  add_prune_command(*checkpoint);
  set_examples(checkpoint, {"gptrain checkpoint verify runs/demo"});
}

}  // namespace gptrain::cli
