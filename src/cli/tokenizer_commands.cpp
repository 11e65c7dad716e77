#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/control_group.h"
#include "base/error.h"
#include "base/json.h"
#include "base/output.h"
#include "base/output_file.h"
#include "base/progress.h"
#include "base/text_file.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/option_checks.h"
#include "cli/reading_options.h"
#include "data/ingest/count_pieces.h"
#include "data/tokenizer/files.h"
#include "data/tokenizer/unicode.h"

namespace gptrain::inline cli {
namespace {

struct TokenizeArguments {
  std::string tokenizer;
  std::string pattern;
  std::string text = "-";
  bool decode = false;
};

// A piece as a JSON string; bytes that are no UTF-8 as \xNN.
std::string quoted(std::string_view piece) {
  if (find_invalid_utf8(piece) == piece.size()) return json_text(nlohmann::json(std::string(piece)));
  std::string text;
  for (const char byte : piece) text += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
  return '"' + text + '"';
}

void tokenize(const TokenizeArguments& arguments) {
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(arguments.tokenizer, arguments.pattern);
  const std::string text = arguments.text == "-" ? read_standard_input() : arguments.text;
  if (arguments.decode) {
    std::vector<int32_t> ids;
    size_t at = 0;
    while ((at = text.find_first_not_of(" ,\t\r\n[]", at)) != std::string::npos) {
      const size_t end = std::min(text.find_first_of(" ,\t\r\n[]", at), text.size());
      int32_t id = 0;
      if (std::from_chars(text.data() + at, text.data() + end, id).ptr != text.data() + end) {
        throw Error(ExitCode::usage, "--decode: {} is not an id", text.substr(at, end - at));
      }
      ids.push_back(id);
      at = end;
    }
    write_result(tokenizer->decode(ids));
    return;
  }
  if (const size_t invalid = find_invalid_utf8(text); invalid < text.size() && !tokenizer->is_bytes()) {
    throw Error(ExitCode::data, "the text is not UTF-8: byte 0x{:02x} at {}", static_cast<uint8_t>(text[invalid]),
                invalid);
  }
  Encoder encoder(tokenizer);
  const std::span<const int32_t> ids = encoder.encode(text);
  std::string numbers;
  std::string pieces;
  for (const int32_t id : ids) {
    numbers += fmt::format(" {}", id);
    pieces += fmt::format(" {}", quoted(tokenizer->text_of(id)));
  }
  print_out("ids:{}\npieces:{}\n", numbers, pieces);
  print_out("{} of {}, from {}\n", format_counted(static_cast<int64_t>(ids.size()), "token"),
            format_grouped(tokenizer->vocab_size()), format_bytes(static_cast<double>(text.size())));
}

struct TokenizerTraining {
  CountOptions count;
  ReadingArguments reading;
  std::string pattern = "gpt2";
  std::string out;
  std::vector<std::string> special = {"<|endoftext|>"};
  int64_t vocab_size = 0;
};

void train_tokenizer(TokenizerTraining& arguments) {
  if (const auto kind = pattern_of_name(arguments.pattern)) {
    arguments.count.stage = *kind;
    arguments.count.nfc = *kind == PatternKind::qwen2;
  } else {
    arguments.count.stage = RegexStage{arguments.pattern, SplitBehavior::isolated};
  }
  arguments.count.reading = read_options(arguments.reading);
  arguments.count.out = arguments.out;
  check_can_write(arguments.out, ExitCode::data);
  const CountedPieces counted = [&] {
    std::unique_ptr<Progress> bar;
    CountedPieces counts = count_pieces(arguments.count, [&](const CountProgress& done) {
      if (!bar) bar = std::make_unique<Progress>("counting", done.total_bytes, ProgressUnit::bytes);
      bar->update(done.done_bytes, {.text_bytes = done.text_bytes});
    });
    if (bar) bar->finish();
    return counts;
  }();
  print_formats(counted.formats);
  if (counted.empty_inputs > 0)
    print_err("left out: {} without a text\n", format_counted(counted.empty_inputs, "input"));
  const PieceCounts& pieces = counted.counts;
  Progress bar("merging", arguments.vocab_size);
  TokenizerParts parts =
      train_bpe(pieces, arguments.vocab_size, arguments.special, [&](int64_t done, int64_t) { bar.update(done); });
  bar.finish();
  parts.stages = {arguments.count.stage};
  parts.nfc = arguments.count.nfc;
  AtomicFile file(arguments.out, ExitCode::data);
  file.write(tokenizer_json(parts));
  file.commit();
  print_out("{}: {} tokens and {}, from {}\n", arguments.out, format_grouped(static_cast<int64_t>(parts.tokens.size())),
            format_counted(static_cast<int64_t>(parts.merges.size()), "merge"),
            format_counted(static_cast<int64_t>(pieces.size()), "different piece"));
}

void add_train_tokenizer_command(CLI::App& data) {
  auto training = std::make_shared<TokenizerTraining>();
  CountOptions& count = training->count;
  count.threads = usable_cores();
  CLI::App* command = data.add_subcommand("train-tokenizer", "train a byte-level BPE tokenizer.json on texts");
  command->add_option("INPUT", count.inputs, "as for data pack")->required();
  command->add_option("--vocab-size", training->vocab_size, "number of tokens, with the 256 bytes and the special ones")
      ->required()
      ->check(whole_number_from(257))
      ->type_name("N");
  command->add_option("--out", training->out, "the tokenizer.json to write")
      ->required()
      ->check(some_text())
      ->type_name("FILE");
  command->add_option("--pattern", training->pattern, "gpt2, gpt4, o200k, llama3, qwen2 (with NFC), or a REGEX")
      ->type_name("NAME");
  command->add_option("--special", training->special, "special tokens, which get the first ids")->type_name("TOKEN");
  add_reading_options(*command, training->reading);
  command->add_option("--sample-bytes", count.sample_bytes, "read about N bytes of the input at most")
      ->check(whole_number_from(1))
      ->type_name("N");
  command->add_flag("--replace-invalid", count.replace_invalid_utf8, "replace bytes that are not UTF-8 by U+FFFD");
  command->add_option("--threads", count.threads, "number of threads (default: one for each core)")
      ->check(number_of_threads())
      ->type_name("N");
  set_examples(command, {"gptrain data train-tokenizer data/corpus/train.txt --vocab-size 300 --out tokenizer.json"});
  command->callback([training] { train_tokenizer(*training); });
}

}  // namespace

void add_tokenizer_commands(CLI::App& data) {
  add_train_tokenizer_command(data);
  auto tokenizing = std::make_shared<TokenizeArguments>();
  CLI::App* command = data.add_subcommand("tokenize", "print the ids and pieces of a text, or the text of ids");
  command->add_option("--tokenizer", tokenizing->tokenizer, "as for data pack")->required()->type_name("NAME");
  command->add_option("--pattern", tokenizing->pattern, "as for data pack");
  command->add_flag("--decode", tokenizing->decode, "TEXT is a list of ids: print their text");
  command->add_option("TEXT", tokenizing->text, "the text, or - for the standard input");
  set_examples(command, {"gptrain data tokenize --tokenizer tokenizer.json \"a b\"",
                         "gptrain data tokenize --tokenizer tokenizer.json --decode \"97 32 98\""});
  command->callback([tokenizing] { tokenize(*tokenizing); });
}

}  // namespace gptrain::cli
