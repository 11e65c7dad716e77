#include <charconv>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <string>

#include "base/control_group.h"
#include "base/output.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/option_checks.h"
#include "cli/reading_options.h"
#include "data/pack.h"
#include "data/tokenizer/files.h"

namespace gptrain::inline cli {
namespace {

const std::map<std::string, SpecialInText> special_choices = {
    {"tokens", SpecialInText::tokens}, {"text", SpecialInText::text}, {"refuse", SpecialInText::refuse}};

struct PackArguments {
  PackOptions options;
  ReadingArguments reading;
  std::string out;
  std::string tokenizer;
  std::string pattern;
  std::string on_bad_line = "stop";
  std::string special_in_text = "tokens";
  std::string part = "1/1";
};

// Parses "i/n" with 1 <= i <= n. Returns "" or the fault.
std::string part_fault(const std::string& text, int& part, int& num_parts) {
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, part);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == '/') {
    const auto second = std::from_chars(first.ptr + 1, end, num_parts);
    if (second.ec == std::errc() && second.ptr == end && 1 <= part && part <= num_parts) return {};
  }
  return fmt::format("{} is not I/N with 1 <= I <= N", text);
}

// "120 samples of 512 tokens, 1.35% of them padding; 2 documents were longer and are cut"
std::string best_fit_text(int64_t length, const PackResult& packed) {
  const auto positions = static_cast<double>(packed.samples * length);
  const auto targets = static_cast<double>(packed.tokens - packed.samples);
  std::string text = fmt::format("{} of {} tokens, {:.2f}% of them padding", format_counted(packed.samples, "sample"),
                                 format_grouped(length), 100 * (1 - targets / positions));
  if (packed.cut_documents > 0)
    text += fmt::format("; {} longer and cut", format_counted(packed.cut_documents, "document"));
  return text;
}

void pack_inputs(PackArguments& arguments) {
  PackOptions& options = arguments.options;
  options.append_end = options.append_end || !options.end_token.empty();
  options.reading = read_options(arguments.reading);
  options.out_prefix = arguments.out;
  options.tokenizer = load_tokenizer(arguments.tokenizer, arguments.pattern);
  options.skip_faults = arguments.on_bad_line == "skip";
  options.special_in_text = special_choices.at(arguments.special_in_text);
  std::unique_ptr<Progress> bar;
  const PackResult packed = pack(options, [&](const PackProgress& done) {
    if (!bar) bar = std::make_unique<Progress>("packing", done.total_bytes, ProgressUnit::bytes);
    bar->update(done.done_bytes, {.tokens = done.tokens, .text_bytes = done.text_bytes});
  });
  if (bar) bar->finish();
  print_formats(packed.formats);
  for (const std::string& fault : packed.first_faults) print_err("left out: {}\n", fault);
  if (packed.faults > 0) {
    print_err("left out: {} that could not be read\n", format_counted(packed.faults, "document"));
  }
  if (packed.empty_documents > 0) print_err("left out: {}\n", format_counted(packed.empty_documents, "empty document"));
  for (const std::string& input : packed.first_empty_inputs) print_err("left out: {}: no document is in it\n", input);
  if (packed.empty_inputs > 0)
    print_err("left out: {} without a document\n", format_counted(packed.empty_inputs, "input"));
  if (packed.special_in_text > 0) {
    print_err("special tokens in texts: {}, {}\n", format_grouped(packed.special_in_text),
              options.special_in_text == SpecialInText::refuse ? "whose documents are left out"
                                                               : "taken as " + arguments.special_in_text);
  }
  if (packed.removed_shards > 0)
    print_err("removed: {} of an earlier pack\n", format_counted(packed.removed_shards, "shard"));
  if (packed.was_finished) {
    print_out("{}: already finished: {}, {}\n", arguments.out, format_counted(packed.documents, "document"),
              format_counted(packed.tokens, "token"));
    return;
  }
  if (packed.samples > 0) print_out("{}: {}\n", arguments.out, best_fit_text(options.best_fit_length, packed));
  print_out("{}: {}, {}{} from {}\n", arguments.out, format_counted(packed.documents, "document"),
            format_counted(packed.tokens, "token"),
            packed.shards > 0 ? fmt::format(" in {}", format_counted(packed.shards, "shard")) : "",
            format_bytes(static_cast<double>(packed.input_bytes)));
}

void add_pack_command(CLI::App& data) {
  auto packing = std::make_shared<PackArguments>();
  PackOptions& options = packing->options;
  options.threads = usable_cores();
  CLI::App* command = data.add_subcommand("pack", "tokenize texts into PREFIX.bin and PREFIX.idx");
  command->add_option("INPUT", options.inputs, "text, JSON, CSV, Parquet, also compressed: files, folders, patterns, -")
      ->required();
  command->add_option("--out", packing->out, "write PREFIX.bin and PREFIX.idx")
      ->required()
      ->check(some_text())
      ->type_name("PREFIX");
  command
      ->add_option("--tokenizer", packing->tokenizer,
                   "bytes, tokenizer.json, tiktoken file, SentencePiece .model, a folder")
      ->required()
      ->type_name("NAME");
  command->add_option("--pattern", packing->pattern,
                      "pattern of a tiktoken file: gpt2, gpt4, o200k, llama3, qwen2, REGEX");
  add_reading_options(*command, packing->reading);
  command->add_flag("--append-eod", options.append_end, "write an end-of-document token after each document");
  command->add_option("--end-token", options.end_token, "write this token (its text or id) after each document")
      ->check(some_text())
      ->type_name("TOKEN");
  command
      ->add_option("--shards-of", options.shard_tokens, "write shards PREFIX-00000, PREFIX-00001, ... of TOKENS tokens")
      ->check(whole_number_from(1))
      ->type_name("TOKENS");
  command
      ->add_option("--best-fit", options.best_fit_length,
                   "fit whole documents into samples of LENGTH = model.sequence_length")
      ->check(whole_number_from(1))
      ->type_name("LENGTH");
  command->add_option("--threads", options.threads, "number of threads (default: one for each core)")
      ->check(number_of_threads())
      ->type_name("N");
  command->add_flag("--resume", options.resume, "continue a stopped pack after its last complete shard");
  command->add_option("--on-bad-line", packing->on_bad_line, "at a document that cannot be read: stop, or skip it")
      ->check(CLI::IsMember({"stop", "skip"}))
      ->type_name("WORD");
  command->add_flag("--replace-invalid", options.replace_invalid_utf8, "replace bytes that are not UTF-8 by U+FFFD");
  command
      ->add_option("--special-in-text", packing->special_in_text,
                   "special tokens in texts: encode as tokens, as text, or refuse")
      ->check(CLI::IsMember({"tokens", "text", "refuse"}))
      ->type_name("WORD");
  command->add_option("--part", packing->part, "pack every N-th input file, from the I-th on: for N machines")
      ->check(CLI::Validator(
          [packing](const std::string& text) {
            return part_fault(text, packing->options.part, packing->options.num_parts);
          },
          ""))
      ->type_name("I/N");
  set_examples(command, {"gptrain data pack data/corpus/train.txt --out data/corpus/train --tokenizer bytes",
                         "gptrain data pack data/corpus/train.txt --out bpe --tokenizer tokenizer.json --append-eod"});
  command->callback([packing] { pack_inputs(*packing); });
}

}  // namespace

void add_data_commands(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "make and look at token files")->require_subcommand(1);
  set_examples(data, {"gptrain data inspect data/corpus/train"});

  add_pack_command(*data);
  add_tokenizer_commands(*data);
  add_token_file_commands(*data);
}

}  // namespace gptrain::cli
