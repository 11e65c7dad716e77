#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/output.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/option_checks.h"
#include "config/load.h"
#include "data/convert.h"
#include "data/dataset.h"
#include "data/inspect.h"
#include "data/join.h"
#include "data/pack.h"
#include "data/run_tokenizer.h"
#include "data/token_file.h"
#include "data/token_meta.h"
#include "data/token_set.h"
#include "data/tokenizer/files.h"

namespace gptrain::inline cli {
namespace {

namespace fs = std::filesystem;

// Runs a task that reports its progress, with a bar.
template <typename Work>
auto with_bar(const std::string& what, Work work) {
  std::unique_ptr<Progress> bar;
  auto result = work([&](int64_t done, int64_t total) {
    if (!bar) bar = std::make_unique<Progress>(what, total);
    bar->update(done);
  });
  if (bar) bar->finish();
  return result;
}

constexpr const char* path_help = "PREFIX, a file of tokens, the PREFIX of shards, a folder, or a pattern";

const std::map<std::string, DType> dtypes = {{"u16", DType::u16}, {"u32", DType::i32}};

void add_dtype_option(CLI::App& command, std::optional<DType>& dtype) {
  command
      .add_option_function<std::string>(
          "--dtype", [&dtype](const std::string& name) { dtype = dtypes.at(name); },
          "the input is tokens of this type without header or index: u16, u32")
      ->check(CLI::IsMember({"u16", "u32"}))
      ->type_name("TYPE");
}

void add_data_verify_command(CLI::App& data) {
  auto prefix = std::make_shared<std::string>();
  auto dtype = std::make_shared<std::optional<DType>>();
  auto vocabulary = std::make_shared<int64_t>(any_vocabulary);
  CLI::App* command = data.add_subcommand("verify", "check the index and the checksums of token files");
  command->add_option("PREFIX", *prefix, path_help)->required();
  command->add_option("--vocabulary", *vocabulary, "also check that every token is below N (model.vocab_size)")
      ->check(whole_number_from(1))
      ->type_name("N");
  add_dtype_option(*command, *dtype);
  set_examples(command, {"gptrain data verify data/corpus/train --vocabulary 257"});
  command->callback([prefix, vocabulary, dtype] {
    const std::vector<fs::path> files = require_token_files(*prefix);
    if (files.size() == 1) {
      return write_out(with_bar("verifying blocks", [&](const auto& progress) {
        return verify_tokens(files[0], *vocabulary, progress, *dtype);
      }));
    }
    write_out(with_bar("verifying token files", [&](const auto& progress) {
      std::string lines;
      for (int64_t done = 0; done < std::ssize(files);) {
        lines += verify_tokens(files[done], *vocabulary, nullptr, *dtype);
        progress(++done, std::ssize(files));
      }
      return lines;
    }));
    verify_packs(files);
    if (const std::string warning = warning_of_two_tokenizers(files); !warning.empty())
      print_err("warning: {}\n", warning);
    print_out("{}: all {} verified\n", *prefix, format_counted(std::ssize(files), "token file"));
  });
}

void add_inspect_command(CLI::App& data) {
  struct Arguments {
    std::string prefix;
    std::string tokenizer;
    int64_t sample = -1;
    std::optional<DType> dtype;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = data.add_subcommand("inspect", "print counts, histogram, entropy and texts of token files");
  command->add_option("PREFIX", arguments->prefix, path_help)->required();
  command->add_option("--sample", arguments->sample, "print document N")->check(whole_number_from(0))->type_name("N");
  command->add_option("--tokenizer", arguments->tokenizer, "as for data pack (default: that of PREFIX.meta.json)")
      ->type_name("NAME");
  add_dtype_option(*command, arguments->dtype);
  set_examples(command, {"gptrain data inspect data/corpus/train --sample 0"});
  command->callback([arguments] {
    const auto tokenizer = arguments->tokenizer.empty() ? nullptr : load_tokenizer(arguments->tokenizer);
    write_out(inspect(arguments->prefix, arguments->sample, tokenizer, arguments->dtype));
  });
}

constexpr const char* unknown_tokenizer = "the tokenizer of these tokens is not known";
constexpr const char* name_it = "name it in data.tokenizer of a run's config";

// Format of OUT without --to, from its name.
TokenFormat format_of_name(const fs::path& out) {
  if (out.extension() == ".npy") return TokenFormat::npy;
  if (out.extension() != ".bin") return TokenFormat::megatron;
  throw Error(ExitCode::usage, "{}: a .bin may be llm.c's or nanoGPT's; say which with --to", out.native());
}

void add_convert_command(CLI::App& data) {
  struct Arguments {
    ConvertOptions options;
    std::string to;
    int32_t end_token = -1;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = data.add_subcommand("convert", "convert token files of Megatron-LM, llm.c, nanoGPT and numpy");
  command->add_option("IN", arguments->options.in, "a PREFIX or a file; its content tells the format")
      ->required()
      ->check(some_text());
  command->add_option("OUT", arguments->options.out, "a PREFIX or a file")->required()->check(some_text());
  static const std::map<std::string, TokenFormat> formats = {{"megatron", TokenFormat::megatron},
                                                             {"llm.c", TokenFormat::llmc},
                                                             {"nanogpt", TokenFormat::nanogpt},
                                                             {"npy", TokenFormat::npy}};
  command->add_option("--to", arguments->to, "format of OUT: megatron, llm.c, nanogpt, npy (default: by its name)")
      ->check(CLI::IsMember({"megatron", "llm.c", "nanogpt", "npy"}))
      ->type_name("FORMAT");
  add_dtype_option(*command, arguments->options.dtype);
  command->add_option("--end-token", arguments->end_token, "with --to megatron: a document ends after each token ID")
      ->check(whole_number_from(0))
      ->type_name("ID");
  set_examples(command, {"gptrain data convert data/corpus/train train.bin --to nanogpt",
                         "gptrain data convert train.bin data/corpus/copy --dtype u16 --end-token 256"});
  command->callback([arguments] {
    ConvertOptions& options = arguments->options;
    options.to = arguments->to.empty() ? format_of_name(options.out) : formats.at(arguments->to);
    if (arguments->end_token >= 0) options.end_token = arguments->end_token;
    const ConvertResult result =
        with_bar("converting", [&](const auto& progress) { return convert_tokens(options, progress); });
    const std::string documents =
        options.to == TokenFormat::megatron ? fmt::format(" in {}", format_counted(result.documents, "document")) : "";
    print_out("{}: {}{}, from {} to {}\n", options.out.native(), format_counted(result.tokens, "token"), documents,
              format_name(result.from), format_name(options.to));
    const bool is_known =
        result.from == TokenFormat::megatron && read_token_meta(options.in).value_or(TokenMeta{}).tokenizer.has_value();
    print_out("note: {}: {}\n",
              is_known ? "the new file does not record the tokenizer of its tokens" : unknown_tokenizer, name_it);
  });
}

void add_join_command(CLI::App& data) {
  struct Arguments {
    std::vector<std::string> inputs;
    std::string out;
    std::optional<DType> dtype;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = data.add_subcommand("join", "join several token files into one");
  command->add_option("PREFIX", arguments->inputs, "in order: token files, PREFIXes of shards, folders, patterns")
      ->required();
  command->add_option("--out", arguments->out, "write PREFIX.bin and PREFIX.idx")
      ->required()
      ->check(some_text())
      ->type_name("PREFIX");
  add_dtype_option(*command, arguments->dtype);
  set_examples(command, {"gptrain data join data/corpus/train data/corpus/heldout --out data/corpus/all"});
  command->callback([arguments] {
    const std::vector<fs::path> inputs = token_files_of(arguments->inputs);
    const JoinResult result = with_bar("joining", [&](const auto& progress) {
      return join_token_files(inputs, arguments->out, progress, arguments->dtype);
    });
    print_out("{}: {}, {} from {}\n", arguments->out, format_counted(result.documents, "document"),
              format_counted(result.tokens, "token"),
              format_counted(static_cast<int64_t>(inputs.size()), "token file"));
    if (!result.has_tokenizer) print_out("note: {}: {}\n", unknown_tokenizer, name_it);
  });
}

struct MixArguments {
  std::string config;
  std::vector<std::string> overrides;
  int64_t steps = 0;  // 0: the config's
};

void print_mixture(const MixArguments& arguments) {
  constexpr double many_epochs = 4;
  RunConfig config = load_config(arguments.config, arguments.overrides);
  if (arguments.steps > 0) config.run.steps = arguments.steps;
  find_run_tokenizer(config.data, config.model.vocab_size);  // refuses what training would refuse
  const Dataset dataset = open_training_data(config, config.run.seed);
  if (const std::string repeated = warning_of_repeated_files(config.data.train); !repeated.empty())
    print_err("warning: {}\n", repeated);
  const int64_t samples = config.run.steps * config.batch.global;
  const auto reports = dataset.report(samples);
  size_t width = 6;
  for (const auto& source : reports) width = std::max(width, source.path.size());
  print_out("{:<{}}  {:>17}  {:>7}  {:>7}  {:>17}  {:>8}  {:>12}\n", "source", width, "tokens", "asked", "share",
            "tokens of run", "epochs", "first repeat");
  for (const auto& source : reports) {
    const bool repeats = source.first_repeat && *source.first_repeat < samples;
    const std::string repeat =
        repeats ? fmt::format("step {}", *source.first_repeat / config.batch.global + 1) : std::string("-");
    print_out("{:<{}}  {:>17}  {:>6.2f}%  {:>6.2f}%  {:>17}  {:>8.2f}  {:>12}\n", source.path, width,
              format_grouped(source.tokens), 100 * source.asked_share, 100 * source.share,
              format_grouped(source.taken * config.model.sequence_length), source.epochs, repeat);
  }
  print_out("{} steps of {}, {} tokens\n", format_grouped(config.run.steps),
            format_counted(config.batch.global, "sequence"), format_grouped(samples * config.model.sequence_length));
  for (const auto& source : reports) {
    if (source.padding > 0) print_out("{}: {:.2f}% of its samples is padding\n", source.path, 100 * source.padding);
  }
  for (const auto& source : reports) {
    if (source.epochs <= many_epochs) continue;
    print_err("warning: {} is seen {:.1f} times; beyond about {:.0f} a repeated token teaches less than a new one\n",
              source.path, source.epochs, many_epochs);
  }
  if (dataset.num_samples() < samples) {
    print_err(
        "warning: after step {} every source has been seen max_epochs times, so train refuses this run: give fewer "
        "steps, or a larger max_epochs\n",
        dataset.num_samples() / config.batch.global);
  }
}

void add_mix_command(CLI::App& data) {
  auto arguments = std::make_shared<MixArguments>();
  CLI::App* command = data.add_subcommand("mix", "print how much of each source a run sees");
  command->add_option("CONFIG", arguments->config, "run config")->required();
  command->add_option("--steps", arguments->steps, "number of steps (default: run.steps)")
      ->check(whole_number_from(1))
      ->type_name("N");
  command->add_option("--set", arguments->overrides, "set a config key (null: its default); repeatable")
      ->type_name("key.path=value")
      ->allow_extra_args(false);
  set_examples(command, {"gptrain data mix configs/demo.json --steps 1000"});
  command->callback([arguments] { print_mixture(*arguments); });
}

}  // namespace

void add_token_file_commands(CLI::App& data) {
  add_data_verify_command(data);
  add_inspect_command(data);
  add_convert_command(data);
  add_join_command(data);
  add_mix_command(data);
}

}  // namespace gptrain::cli
