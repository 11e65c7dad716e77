#include "data/token_set.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <fnmatch.h>
#include <glob.h>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>

#include "base/crc32c.h"
#include "base/directory.h"
#include "base/error.h"
#include "base/json.h"
#include "base/output.h"
#include "base/text_file.h"
#include "base/units.h"
#include "config/source_list.h"
#include "data/pack_state.h"
#include "data/sample_order.h"
#include "data/seen_files.h"
#include "data/token_meta.h"
#include "data/token_paths.h"

namespace gptrain::inline data {
namespace {

namespace fs = std::filesystem;

constexpr size_t shard_digits = 5;

// Returns the token file to which a name leads: PREFIX for its .bin and .idx, or the file itself if it has no index.
// nullopt for folders and other files, PREFIX.meta.json included.
std::optional<fs::path> token_file_with(const fs::path& name) {
  const fs::path prefix = fs::path(name).replace_extension();
  std::error_code ignored;
  const bool has_index = fs::exists(token_file_path(prefix, ".idx"), ignored);
  if (name.extension() == ".idx" || (name.extension() == ".bin" && has_index)) return prefix;
  const bool is_flat = name.extension() == ".bin" || name.extension() == ".npy";
  return is_flat && !fs::is_directory(name, ignored) ? std::optional(name) : std::nullopt;
}

std::vector<fs::path> token_files_among(const std::vector<fs::path>& names) {
  std::set<fs::path> files;
  for (const fs::path& name : names) {
    if (auto file = token_file_with(name)) files.insert(std::move(*file));
  }
  return {files.begin(), files.end()};
}

std::vector<fs::path> names_in(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> names = paths_in(folder, error);
  if (error) throw Error(ExitCode::data, "cannot read {}: {}", folder.native(), error.message());
  std::erase_if(names, [](const fs::path& name) { return name.filename().native().starts_with('.'); });
  return names;
}

// Returns the files whose name or PREFIX matches.
std::vector<fs::path> names_that_match(const std::string& pattern) {
  std::vector<fs::path> names;
  for (const std::string& names_of : {pattern, pattern + ".idx"}) {
    glob_t matches{};
    const int result = ::glob(names_of.c_str(), 0, nullptr, &matches);
    for (size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) names.emplace_back(matches.gl_pathv[i]);
    ::globfree(&matches);
  }
  return names;
}

fs::path folder_of(const fs::path& prefix) { return prefix.has_parent_path() ? prefix.parent_path() : "."; }

[[noreturn]] void throw_gap(const fs::path& prefix, int64_t missing, int64_t later) {
  throw Error(
      ExitCode::data,
      "{}.idx is missing, although there is a later shard, {}: restore the missing shard, or pack the texts again",
      shard_path(prefix, missing).native(), shard_path(prefix, later).native());
}

// Returns the shards PREFIX-00000, PREFIX-00001, ...
std::vector<fs::path> shards_of(const fs::path& prefix) {
  const std::string start = prefix.filename().native() + "-";
  std::set<int64_t> numbers;
  for (const fs::path& path : names_in(folder_of(prefix))) {
    const std::string name = path.filename().native();
    if (!name.starts_with(start) || path.extension() != ".idx") continue;
    const std::string digits = name.substr(start.size(), name.size() - start.size() - std::string_view(".idx").size());
    int64_t number = -1;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (digits.size() >= shard_digits && parsed.ptr == digits.data() + digits.size()) numbers.insert(number);
  }
  std::vector<fs::path> shards;
  for (const int64_t number : numbers) {
    const auto expected = static_cast<int64_t>(shards.size());
    if (number != expected) throw_gap(prefix, expected, number);
    shards.push_back(shard_path(prefix, number));
  }
  return shards;
}

struct ShardName {
  fs::path prefix;
  int64_t number;
};

// Returns nullopt unless the name is PREFIX-NNNNN, with five or more digits.
std::optional<ShardName> shard_name_of(const fs::path& file) {
  const std::string& name = file.native();
  const size_t dash = name.rfind('-');
  if (dash == std::string::npos || name.size() - dash - 1 < shard_digits) return std::nullopt;
  const char* const end = name.data() + name.size();
  int64_t number = -1;
  if (std::from_chars(name.data() + dash + 1, end, number).ptr != end || number < 0) return std::nullopt;
  return ShardName{name.substr(0, dash), number};
}

// Warns once per pack, because a run looks for its files several times.
void warn_of_unfinished(const fs::path& prefix) {
  static std::mutex mutex;
  static std::set<fs::path> warned;
  const std::scoped_lock lock(mutex);
  if (!warned.insert(prefix).second) return;
  print_err(
      "warning: {}: `gptrain data pack` has not finished this set; run it again with --resume for the missing shards\n",
      prefix.native());
}

[[noreturn]] void throw_unwritten(const fs::path& shard, const fs::path& prefix, const PackedShards& packed) {
  throw Error(ExitCode::data,
              "{} is there, and {}.pack.json counts {}: remove the shards that this pack did not write, or give them "
              "another PREFIX",
              shard.native(), prefix.native(), format_counted(packed.shards, "shard"));
}

[[noreturn]] void throw_missing(const fs::path& shard, const fs::path& prefix, const PackedShards& packed) {
  throw Error(ExitCode::data,
              "{}.idx is missing, although {}.pack.json counts {}: restore the missing shard, or pack the texts again",
              shard.native(), prefix.native(), format_counted(packed.shards, "shard"));
}

// Refuses a token file that lies beside shards of the same PREFIX, which hold the same texts.
void refuse_both(const fs::path& whole) {
  std::error_code ignored;
  const fs::path first = shard_path(whole, 0);
  if (fs::exists(token_file_path(first, ".idx"), ignored) && fs::exists(token_file_path(whole, ".idx"), ignored))
    throw Error(ExitCode::data,
                "both {}.idx and its shards from {}.idx on are there: remove one of the two, or give it another PREFIX",
                whole.native(), first.native());
}

// A file of llm.c's kind of set: NAME_NNNNNN.bin or .npy, with six digits.
struct NumberedName {
  std::string name;  // with its folder, up to the digits
  int64_t number;
  std::string suffix;

  fs::path path_of(int64_t other) const { return fmt::format("{}{:06}{}", name, other, suffix); }
  // Returns whether the file may be the first of a set. Its first two digits are then 0, as in no date (202401,
  // 310124).
  bool may_be_first() const { return number < 10'000; }
};

// Returns nullopt for other names.
std::optional<NumberedName> numbered_name_of(const fs::path& file) {
  constexpr size_t digits = 6;
  const std::string suffix = file.extension().native();
  const std::string stem = fs::path(file).replace_extension().native();
  if ((suffix != ".bin" && suffix != ".npy") || stem.size() <= digits) return std::nullopt;
  const size_t first = stem.size() - digits;
  int64_t number = -1;
  const char* const end = stem.data() + stem.size();
  if (stem[first - 1] != '_' || std::from_chars(stem.data() + first, end, number).ptr != end || number < 0)
    return std::nullopt;
  return NumberedName{stem.substr(0, first), number, suffix};
}

// Returns the files PREFIX_NNNNNN.bin, or PREFIX_NNNNNN.npy if there is no such .bin.
std::vector<fs::path> numbered_files_of(const fs::path& prefix) {
  std::vector<fs::path> files;
  for (const char* suffix : {".bin", ".npy"}) {
    for (const fs::path& path : names_in(folder_of(prefix))) {
      const std::optional<NumberedName> name = numbered_name_of(path);
      if (name && path.extension() == suffix && fs::path(name->name).filename() == prefix.filename().native() + "_")
        files.push_back(prefix.native() + path.filename().native().substr(prefix.filename().native().size()));
    }
    std::sort(files.begin(), files.end());
    if (!files.empty() && !numbered_name_of(files.front())->may_be_first()) files.clear();
    if (!files.empty()) break;
  }
  return files;
}

// Throws if a file between others of NAME_NNNNNN.bin is missing and `is_meant(file)`. The first may have any number.
template <typename IsMeant>
void refuse_gaps_of_numbers(const std::vector<fs::path>& files, const IsMeant& is_meant) {
  std::map<std::pair<std::string, std::string>, NumberedName> last_of_name;
  for (const fs::path& file : files) {
    const std::optional<NumberedName> name = numbered_name_of(file);
    if (!name || (!name->may_be_first() && !last_of_name.contains({name->name, name->suffix}))) continue;
    const auto [last, is_first] = last_of_name.try_emplace({name->name, name->suffix}, *name);
    for (int64_t missing = last->second.number + 1; missing < name->number; ++missing) {
      if (!is_meant(name->path_of(missing))) continue;
      throw Error(
          ExitCode::data,
          "{} is missing, although {} and {} are there: fetch the missing file, or name the files that are meant "
          "as sources of their own",
          name->path_of(missing).native(), last->second.path_of(last->second.number).native(), file.native());
    }
    last->second.number = name->number;
  }
}

// Throws if a shard is missing, between others or by the state of the pack, and `is_meant(shard)`. Names that end with
// numbers, such as dates, are no set unless PREFIX-00000 is one of them.
template <typename IsMeant>
std::vector<fs::path> with_all_shards(std::vector<fs::path> files, const IsMeant& is_meant) {
  constexpr int64_t most_shards = 100'000;
  const std::set<fs::path> found(files.begin(), files.end());
  std::map<fs::path, int64_t> last_of_prefix;
  for (const fs::path& file : files) {
    const std::optional<ShardName> name = shard_name_of(file);
    if (!name) continue;
    int64_t& last = last_of_prefix.emplace(name->prefix, name->number).first->second;
    last = std::max(last, name->number);
  }
  for (const auto& [prefix, last] : last_of_prefix) {
    if (found.contains(prefix)) refuse_both(prefix);
    const std::optional<PackedShards> packed = packed_shards(prefix);
    const int64_t counted = packed ? packed->shards : 0;
    const int64_t shards = std::max(counted, found.contains(shard_path(prefix, 0)) ? last : 0);
    for (int64_t number = 0; number < std::min(shards, most_shards); ++number) {
      const fs::path shard = shard_path(prefix, number);
      if (found.contains(shard) || !is_meant(shard)) continue;
      if (number < counted) throw_missing(shard, prefix, *packed);
      throw_gap(prefix, number, last);
    }
    if (packed && packed->finished && last >= counted) throw_unwritten(shard_path(prefix, last), prefix, *packed);
    if (packed && !packed->finished) warn_of_unfinished(prefix);
  }
  refuse_gaps_of_numbers(files, is_meant);
  return files;
}

bool is_pattern(const std::string& path) { return path.find_first_of("*?[") != std::string::npos; }

std::vector<fs::path> files_of_pattern(const std::string& pattern) {
  return with_all_shards(token_files_among(names_that_match(pattern)), [&](const fs::path& shard) {
    for (const fs::path& name : {shard, token_file_path(shard, ".idx"), token_file_path(shard, ".bin")})
      if (::fnmatch(pattern.c_str(), name.c_str(), FNM_PATHNAME) == 0) return true;
    return false;
  });
}

// Refuses weights and paths in turn, which other trainers take as one argument, as the path or in the file there.
void refuse_list(const std::string& path, bool is_file) {
  constexpr size_t most_bytes = size_t{1} << 20;
  std::error_code unreadable;
  const bool is_text = is_file && fs::path(path).extension() != ".bin" && fs::file_size(path, unreadable) <= most_bytes;
  if (is_file && !is_text) return;
  const Json meant = sources_of_list(is_text ? read_text_file(path, most_bytes) : path);
  if (meant.empty() || !meant[0].contains("weight")) return;
  constexpr size_t shown = 4;
  const Json some(meant.begin(), meant.begin() + static_cast<std::ptrdiff_t>(std::min(meant.size(), shown)));
  throw Error(ExitCode::usage, "{}: is a list of weights and paths; make a source of each: {}{}", path, json_text(some),
              meant.size() > shown ? ", and so on" : "");
}

std::vector<TokenFile> open_all(const DataSource& source, int64_t sequence_length, bool checksums) {
  if (source.tokens > 0) return {};
  const std::string& path = source.path;
  std::vector<fs::path> names = token_files_of(path);
  if (!source.dtype && (names.empty() || is_flat_token_file(path))) refuse_list(path, !names.empty());
  if (names.empty()) names = require_token_files(path);
  std::vector<TokenFile> files;
  for (const fs::path& name : names) {
    const TokenFile& file = files.emplace_back(name, checksums, source.dtype);
    const int64_t length = file.best_fit_length();
    if (length > 0 && length != sequence_length) {
      throw Error(ExitCode::usage,
                  "model.sequence_length = {}: {} was packed with --best-fit {}; set model.sequence_length to {}, or "
                  "pack it again with --best-fit {}",
                  sequence_length, name.native(), length, length, sequence_length);
    }
    if (length != files.front().best_fit_length()) {
      throw Error(ExitCode::usage,
                  "{}: its token files must be packed alike, but {} differs from the first in --best-fit", path,
                  name.native());
    }
  }
  return files;
}

}  // namespace

std::vector<fs::path> token_files_of(const std::string& path) {
  std::error_code ignored;
  if (is_token_file(path)) {
    refuse_both(path);
    return {path};
  }
  const auto any = [](const fs::path&) { return true; };
  if (fs::is_directory(path, ignored)) return with_all_shards(token_files_among(names_in(path)), any);
  if (is_pattern(path)) return files_of_pattern(path);
  const fs::path first = shard_path(path, 0);
  const bool has_first = fs::exists(token_file_path(first, ".idx"), ignored);
  if (const auto packed = has_first ? std::nullopt : packed_shards(path)) throw_missing(first, path, *packed);
  if (!has_first && !fs::is_directory(folder_of(path), ignored)) return {};
  std::vector<fs::path> shards = shards_of(path);
  return with_all_shards(shards.empty() ? numbered_files_of(path) : std::move(shards), any);
}

void verify_packs(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    const std::optional<ShardName> name = shard_name_of(file);
    const std::optional<PackedShards> packed =
        name && name->number == 0 ? packed_shards(name->prefix) : std::optional<PackedShards>();
    if (!packed || !packed->finished || !packed->checksum) continue;
    uint32_t checksum = 0;
    for (int64_t shard = 0; shard < packed->shards; ++shard)
      checksum = add_shard_checksum(shard_path(name->prefix, shard), checksum);
    if (checksum != packed->checksum)
      throw Error(ExitCode::data,
                  "{}: each shard is sound, but they are not those that `gptrain data pack` wrote, or stand in another "
                  "order: restore them, or pack the texts again",
                  name->prefix.native());
  }
}

std::vector<fs::path> require_token_files(const std::string& path) {
  std::vector<fs::path> files = token_files_of(path);
  if (!files.empty()) return files;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) throw Error(ExitCode::data, "{}: no token file is in this folder", path);
  if (is_pattern(path)) throw Error(ExitCode::data, "{}: no token file matches", path);
  return {path};
}

std::vector<fs::path> token_files_of(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  std::set<fs::path> parts;
  for (const std::string& path : paths) {
    const std::optional<fs::path> whole = token_file_with(path);
    if (path.ends_with(".meta.json") || path.ends_with(".pack.json")) continue;
    if (whole && *whole != path) {
      if (parts.insert(*whole).second) files.push_back(*whole);
      continue;
    }
    const std::vector<fs::path> found = require_token_files(path);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

std::string warning_of_repeated_files(const std::vector<DataSource>& sources) {
  struct Owner {
    size_t source;
    fs::path file;
  };
  SeenFiles seen;
  std::vector<Owner> owners;  // one for each call of seen.add()
  int64_t repeated = 0;
  std::string first;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].tokens > 0) continue;
    for (const fs::path& file : token_files_of(sources[i].path)) {
      owners.push_back({i, path_of_tokens(file)});
      const std::optional<size_t> before = seen.add(owners.back().file);
      if (!before || repeated++ > 0) continue;
      const Owner& other = owners[*before];
      first = fmt::format("{} of data.train[{}] is {} of data.train[{}]", owners.back().file.native(), i,
                          other.file.native(), other.source);
    }
  }
  if (repeated == 0) return {};
  return fmt::format(
      "{} in the data twice, and {} samples come more often than others: {}; name each file once, and "
      "set the weights of sources",
      repeated == 1 ? "a token file is" : fmt::format("{} token files are", repeated), repeated == 1 ? "its" : "their",
      first);
}

std::string warning_of_two_tokenizers(const std::vector<fs::path>& files) {
  const fs::path* first = nullptr;
  std::string sha256;
  for (const fs::path& file : files) {
    const std::optional<TokenMeta> meta = read_token_meta(file);
    if (!meta || !meta->tokenizer) continue;
    if (first != nullptr && meta->tokenizer->sha256 != sha256)
      return fmt::format(
          "{} and {} were packed with different tokenizers: as one source, a run refuses them; give each tokenizer's "
          "files a folder of their own",
          first->native(), file.native());
    first = &file;
    sha256 = meta->tokenizer->sha256;
  }
  return {};
}

TokenSet::TokenSet(const DataSource& source, int64_t sequence_length, bool checksums)
    : sequence_length_(sequence_length),
      stated_tokens_(source.tokens),
      files_(open_all(source, sequence_length, checksums)) {
  int64_t samples = 0;
  if (stated_tokens_ > 0) ends_.push_back(samples = samples_per_epoch(stated_tokens_, sequence_length));
  for (const TokenFile& file : files_) {
    samples += is_best_fit() ? file.num_samples() : samples_per_epoch(file.num_tokens(), sequence_length);
    ends_.push_back(samples);
  }
  if (samples == 0) {
    throw Error(ExitCode::data,
                "{}: {} tokens are too few for one sample of model.sequence_length + 1 = {} tokens; use more text or "
                "shorter sequences",
                files_.size() != 1 ? source.path : token_file_path(source.path, ".bin").native(), num_tokens(),
                sequence_length + 1);
  }
}

int64_t TokenSet::num_tokens() const {
  int64_t tokens = stated_tokens_;
  for (const TokenFile& file : files_) tokens += file.num_tokens();
  return tokens;
}

int64_t TokenSet::num_documents() const {
  int64_t documents = 0;
  for (const TokenFile& file : files_) documents += file.num_documents();
  return documents;
}

int64_t TokenSet::document_of(const TokenFile& file, int64_t token) const {
  int64_t before = 0;
  for (const TokenFile& earlier : files_) {
    if (&earlier == &file) break;
    before += earlier.num_documents();
  }
  return before + file.document_of(token);
}

SourceRecord TokenSet::identity() const {
  SourceRecord record = files_.front().identity();
  uint32_t order = crc32c(&record.checksum, sizeof record.checksum);
  for (size_t i = 1; i < files_.size(); ++i) {
    const SourceRecord next = files_[i].identity();
    record.tokens += next.tokens;
    record.covered = std::max(record.covered, next.covered);
    record.checksum = crc32c(&next.checksum, sizeof next.checksum, record.checksum);
    order = crc32c(&next.checksum, sizeof next.checksum, order);
    if (record.documents && next.documents)
      record.documents = crc32c(&*next.documents, sizeof *next.documents, *record.documents);
    else
      record.documents.reset();
  }
  if (files_.size() > 1) record.order = order;
  return record;
}

TokenSet::FilePosition TokenSet::position_of(int64_t sample) const {
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), sample);
  const auto index = static_cast<size_t>(end - ends_.begin());
  const TokenFile& file = files_[index];
  const int64_t in_file = index == 0 ? sample : sample - ends_[index - 1];
  if (is_best_fit()) return {file, file.sample(in_file)};
  return {file, {in_file * sequence_length_, sequence_length_ + 1}};
}

}  // namespace gptrain::data
