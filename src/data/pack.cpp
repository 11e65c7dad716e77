#include "data/pack.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/directory.h"
#include "base/error.h"
#include "base/json.h"
#include "base/output.h"
#include "base/output_file.h"
#include "base/units.h"
#include "data/best_fit.h"
#include "data/ingest/input_format.h"
#include "data/ingest/inputs.h"
#include "data/ingest/pipeline.h"
#include "data/inspect.h"
#include "data/pack_state.h"
#include "data/token_file.h"
#include "data/token_paths.h"
#include "data/token_writer.h"
#include "data/tokenizer/record.h"

namespace gptrain::inline data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t progress_step_bytes = int64_t{1} << 20;
// Smallest vocabulary that is stored in i32, as in Megatron-LM.
constexpr int64_t first_vocabulary_of_i32 = 65500;

fs::path shard_prefix(const PackOptions& options, int64_t shard) {
  return options.shard_tokens == 0 ? options.out_prefix : shard_path(options.out_prefix, shard);
}

constexpr std::string_view token_suffixes[] = {".idx", ".meta.json", ".bin"};

// PREFIX for a shard's documents until they are packed into samples.
fs::path unfitted_prefix(const fs::path& shard) { return token_file_path(shard, ".unfitted"); }

void remove_unfitted(const fs::path& shard) {
  std::error_code ignored;
  for (const std::string_view suffix : token_suffixes)
    fs::remove(token_file_path(unfitted_prefix(shard), suffix), ignored);
}

fs::path state_path(const PackOptions& options) { return token_file_path(options.out_prefix, ".pack.json"); }

// Finds the inputs. Checks the options before any output is written.
std::vector<TextInput> find_inputs(const PackOptions& options) {
  if (options.inputs.empty()) throw Error(ExitCode::usage, "no input file to pack");
  const std::vector<TextInput> all = expand_inputs(options.inputs);
  options.reading.fields.refuse_unused(all);
  std::vector<TextInput> own;
  for (size_t i = static_cast<size_t>(options.part) - 1; i < all.size(); i += static_cast<size_t>(options.num_parts)) {
    own.push_back(all[i]);
  }
  if (own.empty()) {
    throw Error(ExitCode::usage,
                "part {}/{}: no input is left for this part of {}; give at most as many parts as files", options.part,
                options.num_parts, format_counted(std::ssize(all), "file"));
  }
  for (const TextInput& input : own) {
    if (input.path == "-" && options.resume) {
      throw Error(ExitCode::usage, "--resume: the standard input cannot be read a second time; pack a file instead");
    }
  }
  for (const std::string_view suffix : token_suffixes)
    refuse_overwritten(own, token_file_path(shard_prefix(options, 0), suffix), "another output prefix");
  return own;
}

// Options and inputs that must be equal for a pack to resume.
nlohmann::json identity_of(const PackOptions& options, const std::vector<TextInput>& inputs,
                           const TokenizerRecord& tokenizer) {
  auto files = nlohmann::json::array();
  for (const TextInput& input : inputs) {
    files.push_back({{"path", input.path.native()}, {"bytes", input.size_bytes}, {"modified", input.modified}});
  }
  return {{"inputs", std::move(files)},
          {"tokenizer_sha256", tokenizer.sha256},
          {"field", options.reading.fields.words()},
          {"format", options.reading.kind ? format_name(*options.reading.kind) : "auto"},
          {"end_token", tokenizer.end_token.value_or(-1)},
          {"shard_tokens", options.shard_tokens},
          {"best_fit_length", options.best_fit_length},
          {"skip_faults", options.skip_faults},
          {"replace_invalid_utf8", options.replace_invalid_utf8},
          {"special_in_text", options.special_in_text}};
}

// Returns words for a key of identity_of() that has changed.
std::string other_choice(const std::string& key) {
  const std::map<std::string, std::string> words = {{"inputs", "other inputs"},
                                                    {"tokenizer_sha256", "another --tokenizer"},
                                                    {"field", "another --field"},
                                                    {"format", "another --format"},
                                                    {"end_token", "another --append-eod or --end-token"},
                                                    {"shard_tokens", "another --shards-of"},
                                                    {"best_fit_length", "another --best-fit"},
                                                    {"skip_faults", "another --on-bad-line"},
                                                    {"replace_invalid_utf8", "another choice of --replace-invalid"},
                                                    {"special_in_text", "another --special-in-text"}};
  const auto found = words.find(key);
  return found == words.end() ? "another " + key : found->second;
}

// Throws for outputs that cannot be written, which a pack would find after hours of work.
void check_outputs(const PackOptions& options) {
  prepare_token_prefix(shard_prefix(options, 0));
  if (options.shard_tokens > 0 || options.resume) check_can_write(state_path(options), ExitCode::data);
}

// Returns the record for all shards but the first, which alone has the tokenizer's text.
TokenizerRecord without_text(TokenizerRecord record) {
  record.text.clear();
  return record;
}

// Removes the temporary files of a killed pack: PREFIX[-NNNNN].{bin,idx,meta.json}.tmp-PROCESS and
// PREFIX[-NNNNN].unfitted.*.
void remove_leftovers(const PackOptions& options) {
  const fs::path folder = options.out_prefix.has_parent_path() ? options.out_prefix.parent_path() : ".";
  const std::string start = options.out_prefix.filename().native();
  std::error_code ignored;
  for (const fs::path& path : paths_in(folder, ignored)) {
    const std::string name = path.filename().native();
    if (!name.starts_with(start)) continue;
    const size_t suffix = std::min(name.find_first_not_of("-0123456789", start.size()), name.size());
    const auto is = [&](std::string_view kind) { return std::string_view(name).substr(suffix).starts_with(kind); };
    if (!is(".bin.tmp-") && !is(".idx.tmp-") && !is(".meta.json.tmp-") && !is(".unfitted.")) continue;
    fs::remove(path, ignored);
  }
}

// Removes PREFIX-00001 and later shards of an earlier pack. Returns their number.
int64_t remove_shards_behind_the_first(const PackOptions& options) {
  constexpr size_t digits = 5;
  const fs::path folder = options.out_prefix.has_parent_path() ? options.out_prefix.parent_path() : ".";
  const std::string start = options.out_prefix.filename().native() + "-";
  std::error_code error;
  std::set<std::string> numbers;
  for (const fs::path& path : paths_in(folder, error)) {
    const std::string name = path.filename().native();
    if (!name.starts_with(start)) continue;
    const size_t end = std::min(name.find_first_not_of("0123456789", start.size()), name.size());
    const std::string number = name.substr(start.size(), end - start.size());
    const bool is_shard =
        number.size() >= digits && number != std::string(digits, '0') &&
        std::find(std::begin(token_suffixes), std::end(token_suffixes), name.substr(end)) != std::end(token_suffixes);
    if (!is_shard) continue;
    numbers.insert(number);
    fs::remove(path, error);
    if (error) break;
  }
  if (error) {
    throw Error(ExitCode::data, "cannot remove the shards that an earlier pack has left in {}: {}", folder.native(),
                error.message());
  }
  return std::ssize(numbers);
}

int32_t find_end_token(const PackOptions& options) {
  const Tokenizer& tokenizer = *options.tokenizer;
  const std::string& name = options.end_token;
  std::optional<int32_t> id = name.empty() ? tokenizer.end_of_document_id() : tokenizer.id_of(name);
  int32_t number = -1;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number);
  if (!id && !name.empty() && parsed.ptr == name.data() + name.size() && tokenizer.has(number)) id = number;
  if (id) return *id;
  if (!name.empty())
    throw Error(ExitCode::usage, "--end-token {}: is no token of {}", name,
                tokenizer.is_bytes() ? "tokenizer bytes" : tokenizer.parts().source);
  throw Error(
      ExitCode::usage,
      "--append-eod: {} has no special token that ends a document (<|endoftext|>, <|end_of_text|>, </s>, <eos>, "
      "<|eot|>): name it with --end-token",
      tokenizer.parts().source);
}

class Packer {
 public:
  Packer(const PackOptions& options, const std::function<void(const PackProgress&)>& progress)
      : options_(options), progress_(progress), inputs_(find_inputs(options)) {
    encode_.replace_invalid_utf8 = options.replace_invalid_utf8;
    encode_.special_in_text = options.special_in_text;
    encode_.narrow = options.tokenizer->vocab_size() < first_vocabulary_of_i32;
    if (options.append_end || options.tokenizer->is_bytes()) {
      encode_.end_token = find_end_token(options);
    }
    tokenizer_ = make_tokenizer_record(*options.tokenizer, encode_.end_token);
    total_bytes_ = total_bytes(inputs_);
    identity_ = identity_of(options, inputs_, tokenizer_);
    if (options.resume) {
      remove_leftovers(options);
      resume();
    } else {
      std::error_code ignored;
      fs::remove(state_path(options), ignored);
    }
  }

  ~Packer() {
    writer_.reset();
    if (options_.best_fit_length > 0) remove_unfitted(shard_prefix(options_, result_.shards));
  }

  PackResult run() {
    if (result_.was_finished) return result_;
    BlockReader reader(
        inputs_, options_.reading, [this](std::string_view text) { return options_.tokenizer->last_safe_cut(text); },
        start_);
    report(start_bytes_);  // whoever measures rates begins here
    IngestPipeline pipeline(reader, options_.tokenizer, encode_, options_.threads);
    open_shard();
    while (std::optional<IngestPipeline::Item> item = pipeline.next()) {
      write(*item);
      pipeline.give_back(std::move(*item));
    }
    result_.formats = formats_.lines();
    if (result_.documents == 0) {
      const std::string why = result_.first_faults.empty() ? "" : "; " + result_.first_faults[0];
      throw Error(ExitCode::data, "nothing to pack: none of the inputs ({} is the first) holds text{}",
                  inputs_[0].path.native(), why);
    }
    if (shard_has_documents_) close_shard();
    writer_.reset();
    pass_inputs_before(inputs_.size());
    if (keeps_state()) save_state({inputs_.size(), 0, 1}, 0, true);
    report(start_bytes_ + result_.input_bytes);
    return result_;
  }

 private:
  bool keeps_state() const { return options_.shard_tokens > 0 || options_.resume; }

  void open_shard() {
    const fs::path prefix = shard_prefix(options_, result_.shards);
    writer_.emplace(options_.best_fit_length > 0 ? unfitted_prefix(prefix) : prefix,
                    encode_.narrow ? DType::u16 : DType::i32);
    writer_->set_tokenizer(result_.shards == 0 ? tokenizer_ : without_text(tokenizer_));
    shard_tokens_ = 0;
    shard_has_documents_ = false;
  }

  void close_shard() {
    writer_->finish();
    if (options_.best_fit_length > 0) {
      const fs::path prefix = shard_prefix(options_, result_.shards);
      const BestFitResult fitted = write_best_fit(unfitted_prefix(prefix), prefix, options_.best_fit_length);
      remove_unfitted(prefix);
      result_.samples += fitted.samples;
      result_.cut_documents += fitted.cut_documents;
    }
    if (keeps_state()) shards_checksum_ = add_shard_checksum(shard_prefix(options_, result_.shards), shards_checksum_);
    if (options_.shard_tokens == 0) return;
    if (result_.shards == 0) result_.removed_shards = remove_shards_behind_the_first(options_);
    ++result_.shards;
  }

  void write(const IngestPipeline::Item& item) {
    const EncodedBlock& encoded = item.encoded;
    text_bytes_ += encoded.text_bytes;
    formats_.add(item.block.input, inputs_[item.block.input].path, item.block.kind, item.block.csv_delimiter,
                 item.block.compression);
    pass_inputs_before(item.block.input);
    documents_in_input_ += std::ssize(encoded.ends) + encoded.num_faults + encoded.empty_documents;
    // A resumed pack has already counted the block in which it stopped.
    const auto to_skip = static_cast<size_t>(std::exchange(documents_to_skip_, 0));
    if (to_skip == 0) count(item);
    size_t begin = to_skip == 0 ? 0 : encoded.ends[to_skip - 1];
    for (size_t i = to_skip; i < encoded.ends.size(); ++i) {
      append(encoded.ids, begin, encoded.ends[i]);
      begin = encoded.ends[i];
      writer_->end_document();
      ++result_.documents;
      shard_has_documents_ = true;
      if (options_.shard_tokens == 0 || shard_tokens_ < options_.shard_tokens) continue;
      close_shard();
      save_state({item.block.input, item.block.offset, item.block.first_line}, static_cast<int64_t>(i) + 1, false);
      open_shard();
    }
    append(encoded.ids, begin, encoded.ids.size());
    result_.input_bytes = item.block.file_bytes_read - start_bytes_;
    if (item.block.file_bytes_read >= next_report_bytes_) {
      report(item.block.file_bytes_read);
      next_report_bytes_ = item.block.file_bytes_read + progress_step_bytes;
    }
  }

  // Counts the inputs in front of `input` that held no document.
  void pass_inputs_before(size_t input) {
    for (; num_passed_inputs_ < input; ++num_passed_inputs_) {
      if (std::exchange(documents_in_input_, 0) > 0) continue;
      ++result_.empty_inputs;
      if (result_.first_empty_inputs.size() < EncodedBlock::max_faults)
        result_.first_empty_inputs.push_back(inputs_[num_passed_inputs_].path.native());
    }
  }

  void report(int64_t done_bytes) const {
    if (!progress_) return;
    progress_({.done_bytes = done_bytes - start_bytes_,
               .total_bytes = std::max<int64_t>(total_bytes_ - start_bytes_, 0),
               .tokens = result_.tokens - start_tokens_,
               .text_bytes = text_bytes_});
  }

  void append(const TokenBuffer& ids, size_t begin, size_t end) {
    if (ids.narrow())
      writer_->append(ids.ids16().subspan(begin, end - begin));
    else
      writer_->append(ids.ids32().subspan(begin, end - begin));
    result_.tokens += static_cast<int64_t>(end - begin);
    shard_tokens_ += static_cast<int64_t>(end - begin);
  }

  void count(const IngestPipeline::Item& item) {
    result_.empty_documents += item.encoded.empty_documents;
    result_.faults += item.encoded.num_faults;
    result_.special_in_text += item.encoded.special_in_text;
    const auto message = [&](const EncodedBlock::Fault& fault) {
      return fmt::format("{}, {} {}: {}", inputs_[item.block.input].path.native(),
                         item.block.kind == InputKind::rows ? "row" : "line", fault.line, fault.reason);
    };
    const std::vector<EncodedBlock::Fault>& faults = item.encoded.faults;
    if (!options_.skip_faults && !faults.empty())
      throw Error(ExitCode::data, with_format(message(faults[0]), item.block));
    if (item.encoded.stop) throw Error(ExitCode::data, with_format(message(*item.encoded.stop), item.block));
    for (const EncodedBlock::Fault& fault : faults) {
      if (result_.first_faults.size() < EncodedBlock::max_faults) result_.first_faults.push_back(message(fault));
    }
  }

  // Adds the detected format to a message, as the detection may be wrong, unless the user named the format.
  static std::string with_format(const std::string& text, const TextBlock& block) {
    if (block.kind == InputKind::rows || block.kind == InputKind::text || block.kind_was_asked) return text;
    const bool has_brackets = text.ends_with(')');
    return fmt::format("{}{}read as {}: if that is wrong, name its format with --format{}", text,
                       has_brackets ? "; " : " (", format_name(block.kind, block.csv_delimiter),
                       has_brackets ? "" : ")");
  }

  void save_state(const BlockPosition& position, int64_t documents_done, bool finished) const {
    const nlohmann::json state = {{"identity", identity_},
                                  {"finished", finished},
                                  {"shards", result_.shards},
                                  {"shards_crc32c", shards_checksum_},
                                  {"documents", result_.documents},
                                  {"empty_documents", result_.empty_documents},
                                  {"empty_inputs", result_.empty_inputs},
                                  {"first_empty_inputs", result_.first_empty_inputs},
                                  {"tokens", result_.tokens},
                                  {"samples", result_.samples},
                                  {"cut_documents", result_.cut_documents},
                                  {"faults", result_.faults},
                                  {"special_in_text", result_.special_in_text},
                                  {"first_faults", result_.first_faults},
                                  {"input", position.input},
                                  {"offset", position.offset},
                                  {"line", position.line},
                                  {"documents_done", documents_done}};
    write_pack_state(state_path(options_), state);
  }

  // A kill before the second shard may leave no state. Later shards without one belong to a pack whose place is lost.
  void begin_without_state(const fs::path& path) const {
    const fs::path second = token_file_path(shard_prefix(options_, 1), ".idx");
    std::error_code ignored;
    if (options_.shard_tokens > 0 && fs::exists(second, ignored)) {
      throw Error(
          ExitCode::data,
          "--resume: {}, which records how far the pack came, is missing, although {} is there; start anew without "
          "--resume",
          path.native(), second.native());
    }
    print_err("note: --resume: there is no {}; packing starts at the beginning\n", path.native());
  }

  void resume() {
    const fs::path path = state_path(options_);
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return begin_without_state(path);
    const nlohmann::json state = read_pack_state(path);
    try {
      for (const auto& [key, value] : state.at("identity").items()) {
        if (identity_.at(key) == value) continue;
        throw Error(ExitCode::usage,
                    "--resume: {} was begun with {}; give the same inputs and options, or start anew without --resume",
                    options_.out_prefix.native(), other_choice(key));
      }
      result_.was_finished = state.at("finished");
      result_.shards = state.at("shards");
      shards_checksum_ = state.at("shards_crc32c");
      result_.documents = state.at("documents");
      result_.empty_documents = state.at("empty_documents");
      result_.empty_inputs = state.at("empty_inputs");
      result_.first_empty_inputs = state.at("first_empty_inputs").get<std::vector<std::string>>();
      result_.tokens = state.at("tokens");
      result_.samples = state.at("samples");
      result_.cut_documents = state.at("cut_documents");
      result_.faults = state.at("faults");
      result_.special_in_text = state.at("special_in_text");
      result_.first_faults = state.at("first_faults").get<std::vector<std::string>>();
      start_ = {state.at("input"), state.at("offset"), state.at("line")};
      documents_to_skip_ = state.at("documents_done");
      num_passed_inputs_ = start_.input;
    } catch (const nlohmann::json::exception&) {
      throw Error(ExitCode::data, "{} is damaged; start anew without --resume", path.native());
    }
    const bool is_one_file = options_.shard_tokens == 0 && result_.was_finished;
    uint32_t found = 0;
    for (int64_t shard = 0; shard < (is_one_file ? 1 : result_.shards); ++shard) {
      try {
        verify_tokens(shard_prefix(options_, shard), any_vocabulary, nullptr);
        found = add_shard_checksum(shard_prefix(options_, shard), found);
      } catch (const Error& error) {
        throw Error(error.code(), "--resume: {}; restore this shard, or start anew without --resume", error.what());
      }
    }
    if (found != shards_checksum_) {
      throw Error(ExitCode::data,
                  "--resume: {} and the shards after it are undamaged, but this pack did not write them; start anew "
                  "without --resume",
                  shard_prefix(options_, 0).native());
    }
    for (size_t i = 0; i < start_.input; ++i) start_bytes_ += inputs_[i].size_bytes;
    start_tokens_ = result_.tokens;
  }

  const PackOptions& options_;
  const std::function<void(const PackProgress&)>& progress_;
  std::vector<TextInput> inputs_;
  EncodeOptions encode_;
  TokenizerRecord tokenizer_;
  nlohmann::json identity_;
  BlockPosition start_;
  int64_t documents_to_skip_ = 0;
  int64_t start_bytes_ = 0;
  int64_t start_tokens_ = 0;
  int64_t total_bytes_ = 0;
  int64_t next_report_bytes_ = progress_step_bytes;
  std::optional<TokenWriter> writer_;
  uint32_t shards_checksum_ = 0;  // add_shard_checksum() of all complete shards
  int64_t shard_tokens_ = 0;
  bool shard_has_documents_ = false;
  int64_t text_bytes_ = 0;  // bytes of text packed by this call
  InputFormats formats_;
  size_t num_passed_inputs_ = 0;
  int64_t documents_in_input_ = 0;  // found in the input behind these, those left out included
  PackResult result_;
};

}  // namespace

PackResult pack(const PackOptions& options, const std::function<void(const PackProgress&)>& progress) {
  check_outputs(options);
  return Packer(options, progress).run();
}

}  // namespace gptrain::data
