#include "data/ingest/input_format.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "base/json_scanner.h"
#include "base/printable.h"
#include "base/units.h"
#include "data/ingest/csv_cutter.h"
#include "data/ingest/foreign_formats.h"
#include "data/ingest/json_record.h"

namespace gptrain::inline data {
namespace {

constexpr std::string_view blanks = json_separators;

struct Suffix {
  std::string_view suffix;
  std::string_view name;
  std::string_view remedy = "give files of texts, or --format";
};
// Suffixes of unsupported formats, refused whatever the content.
constexpr Suffix refused_suffixes[] = {
    {".zip", "a zip archive"},
    {".tar", "a tar archive"},
    {".tgz", "a tar archive"},
    {".tbz2", "a tar archive"},
    {".txz", "a tar archive"},
    {".7z", "a 7z archive"},
    {".rar", "a rar archive"},
    {".lz4", "lz4 data"},
    {".lzma", "lzma data"},
    {".lz", "lzip data"},
    {".br", "brotli data"},
    {".sz", "snappy data"},
    {".snappy", "snappy data"},
    {".Z", "data of compress"},
    {".feather", "a Feather file"},
    {".arrow", "an Arrow file"},
    {".orc", "an ORC file"},
    {".avro", "an Avro file"},
    {".npy", "a numpy file", not_packed_again},
    {".npz", "a numpy archive"},
    {".pdf", "a PDF file"},
    {".docx", "a Word file"},
    {".xlsx", "an Excel file"},
    {".epub", "an EPUB book"},
    {".pkl", "a pickle"},
    {".pickle", "a pickle"},
    {".pt", "a PyTorch file"},
    {".safetensors", "a file of tensors"},
    {".sqlite", "an SQLite database"},
    {".warc", "a WARC file"},
    {".dvc", "a DVC pointer, not the data", fetch_dvc},
};

struct Compression {
  std::string_view suffix;
  std::string_view name;
};
constexpr Compression compressions[] = {{".gz", "gzip"},   {".gzip", "gzip"}, {".zst", "zstd"},
                                        {".zstd", "zstd"}, {".xz", "xz"},     {".bz2", "bzip2"}};

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return text;
}

// Returns the suffix of a name before a suffix of compression.
std::string format_suffix(std::filesystem::path path) {
  if (!compression_of_name(path).empty()) path.replace_extension();
  return lower(path.extension().native());
}

enum class JsonShape {
  none,     // not JSON
  lines,    // a value per line
  one,      // a list, or one object over several lines
  several,  // several values, each over several lines
};

struct Lines {
  size_t number = 0;
  size_t records = 0;  // lines that begin with { and end with }
};

// Counts whole lines that are not blank.
Lines count_json_lines(std::string_view text, bool is_whole) {
  Lines lines;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    if (newline == std::string_view::npos && !is_whole) break;
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    const size_t first = line.find_first_not_of(blanks);
    if (first == std::string_view::npos) continue;
    ++lines.number;
    if (line[first] == '{' && line[line.find_last_not_of(blanks)] == '}') ++lines.records;
  }
  return lines;
}

JsonShape json_shape(std::string_view text, bool is_whole) {
  constexpr std::string_view json_blanks = " \t\r\n";
  const bool is_sequence = text.starts_with('\x1E');
  text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
  if (text.empty()) return JsonShape::none;
  const Lines lines = count_json_lines(text, is_whole);
  const bool are_records = lines.records > 0 && 2 * lines.records >= lines.number;
  const char first = text[0];
  if (first != '{' && first != '[') return are_records ? JsonShape::lines : JsonShape::none;
  const size_t second = std::min(text.find_first_not_of(blanks, 1), text.size() - 1);
  const bool is_list = first == '[' && std::string_view("{[]\"").find(text[second]) != std::string_view::npos;
  const size_t end = end_of_json_value(text);
  if (end == std::string_view::npos) {
    if (are_records) return JsonShape::lines;
    if (first == '[') return is_list ? JsonShape::one : JsonShape::none;
    return text.find('\n') == std::string_view::npos ? JsonShape::lines : JsonShape::one;
  }
  const bool is_one_line = text.substr(0, end).find_first_of("\r\n") == std::string_view::npos;
  const bool is_alone = !is_sequence && is_whole && text.find_first_not_of(json_blanks, end) == std::string_view::npos;
  if (is_alone) {
    if (first == '[') return is_list ? JsonShape::one : JsonShape::none;
    return is_one_line ? JsonShape::lines : JsonShape::one;
  }
  if (first == '[' && !is_list) return are_records ? JsonShape::lines : JsonShape::none;
  if (are_records || is_one_line) return JsonShape::lines;
  return JsonShape::several;
}

// Returns true if the first line ends with an open value: JSON with indentation.
bool is_pretty_printed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
  const size_t newline = text.find('\n');
  if (newline == std::string_view::npos) return false;
  const size_t last = text.substr(0, newline).find_last_not_of(blanks);
  return last != std::string_view::npos && std::string_view("{[,").find(text[last]) != std::string_view::npos;
}

[[noreturn]] void refuse_pretty_printed(const InputQuestion& question) {
  refuse_format(question.path, "JSON whose values go over several lines",
                fmt::format("make JSONL of it with: jq -c {}. IN >OUT.jsonl",
                            question.start.starts_with('\x1E') ? "--seq " : ""));
}

constexpr std::array<char, 4> delimiters = {',', '\t', ';', '|'};

struct CsvHeader {
  std::vector<std::string> names;
  size_t bytes = 0;
};

// Returns the names of columns for a message: "id, body"; long ones and long lists are cut.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t most_names = 20;
  constexpr size_t most_bytes = 40;
  if (names.size() == 1 && names[0].empty()) return "none: the line is empty";
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most_names); ++i)
    text += (i > 0 ? ", " : "") + (names[i].empty() ? "\"\"" : printable(names[i], most_bytes));
  return names.size() > most_names ? fmt::format("{} and {} more", text, names.size() - most_names) : text;
}

InputFormat csv_format(const InputQuestion& question, char delimiter, const CsvHeader& header) {
  const auto column = std::find(header.names.begin(), header.names.end(), question.field);
  if (std::count(header.names.begin(), header.names.end(), question.field) > 1) {
    throw Error(ExitCode::data,
                "{}, line 1: two columns of the header are named \"{}\": rename one of them, or name another column "
                "with --field",
                question.path.native(), question.field);
  }
  if (column == header.names.end()) {
    throw Error(ExitCode::data,
                "{}, line 1: the header has no column \"{}\" (name another with --field); its columns are {}",
                question.path.native(), question.field, listed(header.names));
  }
  CsvCutter cutter(delimiter);
  cutter.scan(question.start.substr(0, header.bytes), true);
  if (const auto quote = cutter.open_quote()) {
    refuse_open_quote(
        question.path,
        1 + std::count(question.start.begin(), question.start.begin() + static_cast<std::ptrdiff_t>(*quote), '\n'));
  }
  return {.kind = InputKind::csv,
          .csv_delimiter = delimiter,
          .csv_column = static_cast<size_t>(column - header.names.begin()),
          .csv_columns = header.names.size(),
          .header_bytes = header.bytes};
}

CsvHeader csv_header(std::string_view start, char delimiter) {
  CsvHeader header;
  header.bytes = parse_csv_record(start, true, header.names, delimiter);
  return header;
}

InputFormat of_kind(InputKind kind) { return {.kind = kind}; }

InputFormat json_format(const InputQuestion& question, JsonShape shape) {
  if (shape == JsonShape::several) refuse_pretty_printed(question);
  return of_kind(shape == JsonShape::lines ? InputKind::jsonl : InputKind::json);
}

// Returns the delimiter by the name's suffix; without one, the first with which the header has the column, or a comma.
char delimiter_of(const InputQuestion& question, std::string_view suffix) {
  if (suffix == ".tsv" || suffix == ".tab") return '\t';
  for (const char delimiter : delimiters) {
    const std::vector<std::string> names = csv_header(question.start, delimiter).names;
    if (std::find(names.begin(), names.end(), question.field) != names.end()) return delimiter;
  }
  return ',';
}

InputFormat csv_format(const InputQuestion& question, std::string_view suffix) {
  const char delimiter = delimiter_of(question, suffix);
  return csv_format(question, delimiter, csv_header(question.start, delimiter));
}

bool is_text_suffix(std::string_view suffix) {
  constexpr std::string_view texts[] = {".txt", ".text", ".md", ".rst", ".tex"};
  return std::find(std::begin(texts), std::end(texts), suffix) != std::end(texts);
}

// Returns true if the text begins with a JSON object or list.
bool begins_with_json(std::string_view text) {
  try {
    JsonScanner(text.substr(0, end_of_json_value(text)), JsonDialect::python).whole();
    return true;
  } catch (const JsonFault&) {
    return false;
  }
}

// Returns true if the text is JSON, or if half of its first lines are objects: most likely documents with a member.
bool holds_json(std::string_view text, bool is_whole) {
  constexpr size_t most_lines = 100;
  text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
  const bool is_open = text.starts_with("{\"") || text.starts_with("[{") || text.starts_with("[\"");
  if (is_open && is_whole && begins_with_json(text)) return true;
  if (is_open && !is_whole && text.find('\n') == std::string_view::npos) return true;
  size_t lines = 0;
  size_t objects = 0;
  for (; lines < most_lines && !text.empty(); ++lines) {
    const size_t newline = text.find('\n');
    const std::string_view line = text.substr(0, newline);
    if (newline == std::string_view::npos && !is_whole) break;
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
    if (line.starts_with('{') && begins_with_json(line)) ++objects;
  }
  return objects > 0 && 2 * objects >= lines;
}

// Returns the format of a file that is a text by its name. Refuses records, most likely meant as documents.
InputFormat format_of_text_name(const InputQuestion& question) {
  const std::string_view remedy = "give --format text, or the format that is meant";
  if (holds_json(question.start, question.is_whole))
    refuse_format(question.path, "a text by its name and JSON by its content", remedy);
  for (const char delimiter : delimiters) {
    const CsvHeader header = csv_header(question.start, delimiter);
    if (header.names.size() > 1 && std::count(header.names.begin(), header.names.end(), question.field) == 1)
      refuse_format(question.path, "a text by its name and a table by its first line", remedy);
  }
  return of_kind(InputKind::text);
}

// Returns the format by the name's suffix; nullopt if the suffix tells none.
std::optional<InputFormat> format_of_name(const InputQuestion& question, const std::string& suffix) {
  if (is_text_suffix(suffix)) return format_of_text_name(question);
  const JsonShape shape = json_shape(question.start, question.is_whole);
  if (suffix == ".jsonl" || suffix == ".ndjson") {
    if (shape != JsonShape::lines && is_pretty_printed(question.start) && shape != JsonShape::none) {
      refuse_pretty_printed(question);
    }
    return of_kind(InputKind::jsonl);
  }
  if (suffix == ".json") return shape == JsonShape::none ? of_kind(InputKind::json) : json_format(question, shape);
  if (suffix == ".csv" || suffix == ".tsv" || suffix == ".tab" || suffix == ".psv") return csv_format(question, suffix);
  if (suffix == ".parquet" && !question.compression.empty()) {
    refuse_format(question.path, fmt::format("{} data, although its name says Parquet", question.compression),
                  "decompress it if it holds Parquet, otherwise rename it after its content, such as x.jsonl.gz");
  }
  if (suffix == ".parquet")
    refuse_format(question.path, "no Parquet file, although its name says so", "look for a damaged download");
  for (const Suffix& known : refused_suffixes) {
    if (suffix == known.suffix) refuse_format(question.path, std::string(known.name) + " by its name", known.remedy);
  }
  return std::nullopt;
}

std::optional<InputFormat> format_of_content(const InputQuestion& question) {
  if (const JsonShape shape = json_shape(question.start, question.is_whole); shape != JsonShape::none) {
    return json_format(question, shape);
  }
  for (const char delimiter : delimiters) {
    const CsvHeader header = csv_header(question.start, delimiter);
    const auto count = std::count(header.names.begin(), header.names.end(), question.field);
    if (count == 1 && (header.names.size() > 1 || question.field_is_given))
      return csv_format(question, delimiter, header);
  }
  return std::nullopt;
}

}  // namespace

size_t parse_csv_record(std::string_view text, bool at_end, std::vector<std::string>& fields, char delimiter) {
  fields.assign(1, {});
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c != '"') {
        fields.back() += c;
      } else if (text.substr(at + 1, 1) == "\"") {
        fields.back() += text[++at];
      } else {
        quoted = false;
      }
    } else if (c == '"' && fields.back().empty()) {
      quoted = true;
    } else if (c == delimiter) {
      fields.emplace_back();
    } else if (c == '\n' || (c == '\r' && (at_end || at + 1 < text.size()))) {
      return at + (text.substr(at).starts_with("\r\n") ? 2 : 1);
    } else {
      fields.back() += c;
    }
  }
  return at_end ? text.size() : 0;
}

void refuse_open_quote(const std::filesystem::path& path, int64_t line) {
  throw Error(ExitCode::data,
              "{}, line {}: the double quote that opens a field here is not closed: close it, or write it twice within "
              "double quotes",
              path.native(), line);
}

std::string_view compression_of_name(const std::filesystem::path& path) {
  const std::string suffix = lower(path.extension().native());
  for (const Compression& known : compressions) {
    if (suffix == known.suffix) return known.name;
  }
  return {};
}

InputFormat find_input_format(const InputQuestion& question) {
  const std::string suffix = format_suffix(question.path);
  if (question.asked) {
    if (*question.asked == InputKind::rows) refuse_format(question.path, "no Parquet file", "give another --format");
    if (*question.asked != InputKind::csv) return of_kind(*question.asked);
    return csv_format(question, suffix);
  }
  if (auto format = format_of_name(question, suffix)) return *format;
  if (auto format = format_of_content(question)) return *format;
  if (question.field_is_given) {
    throw Error(
        ExitCode::data,
        "{} has no field \"{}\": its content is neither JSONL, JSON, CSV nor Parquet (--format text takes it as "
        "one text)",
        question.path.native(), question.field);
  }
  // A zero byte has a message of its own, with its line.
  if (!question.start.empty() && is_control(question.start[0]) && question.start[0] != '\0') {
    throw Error(
        ExitCode::data,
        "{} begins with the control character 0x{:02X}: this is no text (--format text reads it as one all the same)",
        question.path.native(), static_cast<int>(question.start[0]));
  }
  return {};
}

std::string_view format_name(InputKind kind) {
  switch (kind) {
    case InputKind::text:
      return "one text";
    case InputKind::jsonl:
      return "JSONL";
    case InputKind::json:
      return "JSON";
    case InputKind::csv:
      return "CSV";
    case InputKind::rows:
      return "Parquet";
  }
  return "";
}

std::string format_name(InputKind kind, char delimiter) {
  if (kind != InputKind::csv || delimiter == ',') return std::string(format_name(kind));
  return delimiter == '\t' ? std::string("TSV") : fmt::format("{} with {}", format_name(kind), delimiter);
}

void InputFormats::add(size_t number, const std::filesystem::path& input, InputKind kind, char delimiter,
                       std::string_view compression) {
  if (last_input_ == number) return;
  last_input_ = number;
  std::string format = format_name(kind, delimiter);
  if (!compression.empty()) format += fmt::format(" ({})", compression);
  auto count = std::find_if(counts_.begin(), counts_.end(), [&](const Count& known) { return known.format == format; });
  if (count == counts_.end()) count = counts_.insert(counts_.end(), {.format = format, .first = input.native()});
  ++count->inputs;
}

std::vector<std::string> InputFormats::lines() const {
  std::vector<std::string> lines;
  for (const Count& count : counts_) {
    lines.push_back(count.inputs == 1 ? fmt::format("{} as {}", count.first, count.format)
                                      : fmt::format("{} as {}, {} the first", format_counted(count.inputs, "file"),
                                                    count.format, count.first));
  }
  return lines;
}

}  // namespace gptrain::data
