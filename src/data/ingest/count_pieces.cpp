#include "data/ingest/count_pieces.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/thread.h"
#include "data/ingest/block_texts.h"
#include "data/ingest/input_format.h"
#include "data/ingest/inputs.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
namespace {

class Counter {
 public:
  explicit Counter(const CountOptions& options) : texts_(options.replace_invalid_utf8), nfc_(options.nfc) {
    if (const auto* kind = std::get_if<PatternKind>(&options.stage)) {
      scan_ = scanner_of_pattern(*kind);
    } else {
      regex_.emplace(std::get<RegexStage>(options.stage).regex, "--pattern");
    }
  }

  void count(const TextBlock& block, const std::filesystem::path& path) {
    texts_.read(
        block,
        [&](std::string_view text, int64_t) {
          inputs_with_texts.insert(block.input);
          count_text(text);
        },
        [&](int64_t line, const std::string& reason, bool) {
          throw Error(ExitCode::data, "{}, {} {}: {}", path.native(), block.kind == InputKind::rows ? "row" : "line",
                      line, reason);
        });
  }

  PieceCounts counts;
  std::set<size_t> inputs_with_texts;

 private:
  void count_text(std::string_view text) {
    if (nfc_ && normalize_nfc(text, normalized_)) text = normalized_;
    for (size_t at = 0; at < text.size();) {
      if (scan_ != nullptr) {
        const size_t length = scan_(text, at);
        add(text.substr(at, length));
        at += length;
      } else {
        const Regex::Match match = regex_->find(text, at);
        if (match.begin > at) add(text.substr(at, match.begin - at));
        if (match.end > match.begin) add(text.substr(match.begin, match.end - match.begin));
        at = match.end;
      }
    }
  }

  void add(std::string_view piece) {
    piece_.assign(piece);
    ++counts[piece_];
  }

  BlockTexts texts_;
  bool nfc_;
  PieceScanner scan_ = nullptr;
  std::optional<Regex> regex_;
  std::string normalized_;
  std::string piece_;
};

}  // namespace

CountedPieces count_pieces(const CountOptions& options, const std::function<void(const CountProgress&)>& progress) {
  const std::vector<TextInput> inputs = expand_inputs(options.inputs);
  options.reading.fields.refuse_unused(inputs);
  refuse_overwritten(inputs, options.out, "another --out");
  // With a well-known pattern, text may be cut between a word and the space after it. Other patterns may have pieces
  // that span this border.
  const bool can_cut = std::holds_alternative<PatternKind>(options.stage);
  BlockReader reader(inputs, options.reading, [&](std::string_view text) { return can_cut ? last_safe_cut(text) : 0; });
  if (progress) progress({0, total_bytes(inputs), 0});  // whoever measures rates begins here
  std::mutex mutex;
  InputFormats formats;
  int64_t num_bytes = 0;
  size_t num_inputs = 0;  // read to their end, or begun
  std::exception_ptr error;
  std::vector<std::unique_ptr<Counter>> counters;
  std::vector<std::thread> threads;  // one for each counter but the first
  std::function<void(Counter&)> work;
  size_t num_blocks = 0;
  const auto next = [&]() -> std::optional<TextBlock> {
    const std::scoped_lock lock(mutex);
    if (error || (options.sample_bytes > 0 && num_bytes >= options.sample_bytes)) return std::nullopt;
    std::optional<TextBlock> block = reader.next();
    if (!block) {
      num_inputs = inputs.size();
      return block;
    }
    formats.add(block->input, inputs[block->input].path, block->kind, block->csv_delimiter, block->compression);
    num_bytes += static_cast<int64_t>(block->text().size());
    num_inputs = block->input + 1;
    if (progress) progress({block->file_bytes_read, total_bytes(inputs), num_bytes});
    // Starts at most one thread with each block, so that there are never more threads than blocks.
    if (counters.size() < std::min(static_cast<size_t>(options.threads), ++num_blocks)) {
      Counter& counter = *counters.emplace_back(std::make_unique<Counter>(options));
      threads.push_back(start_thread("counts the pieces of the input", [&work, &counter] { work(counter); }));
    }
    return block;
  };
  work = [&](Counter& counter) {
    try {
      while (const std::optional<TextBlock> block = next()) counter.count(*block, inputs[block->input].path);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  work(*counters.emplace_back(std::make_unique<Counter>(options)));
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  PieceCounts counts = std::move(counters[0]->counts);
  for (size_t i = 1; i < counters.size(); ++i) {
    for (const auto& [piece, count] : counters[i]->counts) counts[piece] += count;
    counters[0]->inputs_with_texts.merge(counters[i]->inputs_with_texts);
    counters[i].reset();
  }
  const auto with_texts = static_cast<int64_t>(counters[0]->inputs_with_texts.size());
  return {std::move(counts), formats.lines(), static_cast<int64_t>(num_inputs) - with_texts};
}

}  // namespace gptrain::data
