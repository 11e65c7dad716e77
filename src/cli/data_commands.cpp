#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

#include "base/output.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/numbers.h"
#include "data/pack.h"

namespace gptrain {
namespace {

struct PackArguments {
  std::vector<std::string> inputs;
  std::string out;
  std::string tokenizer;
};

void pack(const PackArguments& arguments) {
  PackOptions options;
  options.inputs.assign(arguments.inputs.begin(), arguments.inputs.end());
  options.out_prefix = arguments.out;
  std::unique_ptr<Progress> bar;
  const PackResult packed = pack_bytes(options, [&](int64_t done, int64_t total) {
    if (!bar) bar = std::make_unique<Progress>("packing", total, ProgressUnit::bytes);
    bar->update(done);
  });
  if (bar) bar->finish();
  print_out("{}: {}, {} tokens from {}\n", arguments.out, format_counted(packed.documents, "document"),
            format_grouped(packed.tokens), format_bytes(static_cast<double>(packed.input_bytes)));
}

}  // namespace

void add_data_commands(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "make and look at token files")->require_subcommand(1);

  auto packing = std::make_shared<PackArguments>();
  CLI::App* pack_command = data->add_subcommand("pack", "text or JSONL files to PREFIX.bin and PREFIX.idx");
  pack_command->add_option("INPUT", packing->inputs, "text files, or .jsonl files with a \"text\" field")->required();
  pack_command->add_option("--out", packing->out, "where to write")->required()->type_name("PREFIX");
  const CLI::Validator known_tokenizer(
      [](const std::string& name) {
        if (name == "bytes") return std::string();
        return fmt::format(
            "{} is not bytes, the tokenizer of gptrain; with others Megatron-LM's tools/preprocess_data.py makes "
            "token files, see data/README.md",
            name);
      },
      "{bytes}");
  pack_command->add_option("--tokenizer", packing->tokenizer, "bytes: ids 0-255 are bytes, 256 ends a document")
      ->required()
      ->check(known_tokenizer);
  pack_command->callback([packing] { pack(*packing); });

  auto verifying = std::make_shared<std::string>();
  CLI::App* verify_command = data->add_subcommand("verify", "check a token file's index and checksums");
  verify_command->add_option("PREFIX", *verifying, "PREFIX of PREFIX.bin and PREFIX.idx")->required();
  verify_command->callback([verifying] {
    std::unique_ptr<Progress> bar;
    const std::string result = verify_tokens(*verifying, [&](int64_t done, int64_t total) {
      if (!bar) bar = std::make_unique<Progress>("verifying blocks", total);
      bar->update(done);
    });
    if (bar) bar->finish();
    write_out(result);
  });

  struct InspectArguments {
    std::string prefix;
    int64_t sample = -1;
  };
  auto inspecting = std::make_shared<InspectArguments>();
  CLI::App* inspect_command = data->add_subcommand("inspect", "counts, histogram and entropy of a token file");
  inspect_command->add_option("PREFIX", inspecting->prefix, "PREFIX of PREFIX.bin and PREFIX.idx")->required();
  inspect_command->add_option("--sample", inspecting->sample, "print document N")
      ->check(whole_number_from(0))
      ->type_name("N");
  inspect_command->callback([inspecting] { write_out(inspect(inspecting->prefix, inspecting->sample)); });
}

}  // namespace gptrain
