#include "data/ingest/foreign_formats.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <strings.h>
#include <system_error>

#include "base/error.h"
#include "base/text_file.h"
#include "data/token_paths.h"
#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
namespace {

// Returns true if the header's checksum holds: the sum of its bytes, in octal digits, with spaces in its own place.
// The oldest archives have no other sign.
bool is_tar_header(std::string_view start) {
  constexpr size_t header_bytes = 512;
  constexpr size_t checksum_at = 148;
  constexpr size_t checksum_bytes = 8;
  if (start.size() < header_bytes) return false;
  const std::string_view digits = start.substr(checksum_at, checksum_bytes);
  uint32_t stored = 0;
  for (const char digit : digits.substr(std::min(digits.find_first_not_of(' '), checksum_bytes))) {
    if (digit < '0' || digit > '7') break;
    stored = stored * 8 + static_cast<uint32_t>(digit - '0');
  }
  uint32_t sum = 0;
  for (size_t i = 0; i < header_bytes; ++i)
    sum += i - checksum_at < checksum_bytes ? uint32_t{' '} : static_cast<uint8_t>(start[i]);
  return stored == sum;
}

// Returns true if control bytes follow the four letters, as in every Parquet file and in no text.
bool is_parquet_with(std::string_view magic, std::string_view start) {
  constexpr size_t most_bytes = 1000;
  if (!start.starts_with(magic)) return false;
  const std::string_view rest = start.substr(magic.size(), most_bytes);
  return std::any_of(rest.begin(), rest.end(), is_control);
}

struct Magic {
  size_t at;
  std::string_view bytes;
  std::string_view name;
  std::string_view remedy;
};

constexpr std::string_view unpack = "unpack it and give the files in it";
constexpr std::string_view to_parquet = "save it as Parquet or JSONL";
constexpr std::string_view decompress = "decompress it, or compress it as gzip, zstd, xz or bzip2";
constexpr std::string_view no_texts = "give files of texts";
constexpr std::string_view fetch_lfs = "fetch the data with git lfs pull";

constexpr std::string_view spell_out = "save its text as a .txt";
constexpr std::string_view save_array =
    "token arrays are not packed: save each with np.save, and name the .npy in data.train";

// Zip archives that are files of a program, told by the suffix or by the names of their first entries.
struct ZipForm {
  const char* suffix;
  std::string_view first_entry;  // the first entry's name begins or ends with this
  std::string_view entry;        // another name that the start holds; empty: none is needed
  std::string_view name;
  std::string_view remedy;
};
constexpr ZipForm zip_forms[] = {
    {".docx", "[Content_Types].xml", "word/", "a Word file", spell_out},
    {".xlsx", "[Content_Types].xml", "xl/", "an Excel file", "save each sheet as CSV"},
    {".pptx", "[Content_Types].xml", "ppt/", "a PowerPoint file", spell_out},
    {".epub", "mimetype", "application/epub+zip", "an EPUB book", spell_out},
    {".odt", "mimetype", "application/vnd.oasis.opendocument.text", "an OpenDocument text", spell_out},
    {".npz", ".npy", "", "a numpy archive", save_array},
    {".pt", "/data.pkl", "", "a PyTorch file", no_texts},
};

constexpr Magic foreign[] = {
    {0, "PK\x05\x06", "an empty zip archive", unpack},
    {0, "7z\xBC\xAF\x27\x1C", "a 7z archive", unpack},
    {0, "Rar!\x1A\x07", "a rar archive", unpack},
    {0, "!<arch>\n", "an ar archive", unpack},
    {0, "\x04\x22\x4D\x18", "lz4 data", decompress},
    {0, "\x02\x21\x4C\x18", "lz4 data", decompress},
    {0, std::string_view("\xFF\x06\x00\x00sNaPpY", 10), "snappy data", decompress},
    {0, "LZIP\x01", "lzip data", decompress},
    {0, "\x1F\x9D", "data of compress", decompress},
    {0, std::string_view("\x89LZO\0", 5), "lzop data", decompress},
    {0, std::string_view("\x5D\x00\x00", 3), "lzma data", decompress},
    {0, "\x1F\x8B", "compressed twice (gzip data within compressed data)", decompress},
    {0, "\x28\xB5\x2F\xFD", "compressed twice (zstd data within compressed data)", decompress},
    {0,
     std::string_view("\xFD"
                      "7zXZ\0",
                      6),
     "compressed twice (xz data within compressed data)", decompress},
    {4, "1AY&SY", "compressed twice (bzip2 data within compressed data)", decompress},
    {0, std::string_view("ARROW1\0\0", 8), "an Arrow file (Feather, version 2)", to_parquet},
    {0, std::string_view("FEA1\0", 5), "a Feather file of version 1", to_parquet},
    {0, "\xFF\xFF\xFF\xFF", "an Arrow stream", to_parquet},
    {0, "Obj\x01", "an Avro file", to_parquet},
    {0, "\x89HDF\r\n\x1A\n", "an HDF5 file", to_parquet},
    {0, std::string_view("SQLite format 3\0", 16), "an SQLite database", to_parquet},
    {0, "\x93NUMPY", "a numpy file", not_packed_again},
    {0, std::string_view("MMIDIDX\0\0", 9), "the index of a token file", "name its PREFIX in data.train"},
    {0, std::string_view("\x88\xD8\x34\x01\x01\0\0\0", 8), "a token file of llm.c", not_packed_again},
    {0, std::string_view("\xA1\xD9\x34\x01\x07\0\0\0", 8), "a token file of llm.c", not_packed_again},
    {0, "\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1", "a Word, Excel or PowerPoint file of the old form",
     "save its text as UTF-8"},
    {0, "\x80\x02}", "a pickle", to_parquet},
    {0, "\x80\x03}", "a pickle", to_parquet},
    {0, "\x80\x04\x95", "a pickle", to_parquet},
    {0, "\x80\x05\x95", "a pickle", to_parquet},
    {0, "GGUF", "a file of tensors (GGUF)", no_texts},
    {0, "%PDF-", "a PDF file", "extract its text"},
    {0, "{\\rtf", "an RTF file", "extract its text"},
    {0,
     "\x7F"
     "ELF",
     "an executable", no_texts},
    {0, "\x89PNG", "a picture", no_texts},
    {0, "\xFF\xD8\xFF", "a picture", no_texts},
    {0, "WARC/1.", "a WARC file", "extract its texts to JSONL"},
    {0, git_lfs_pointer, "a Git LFS pointer, not the data", fetch_lfs},
    {0, "version https://hawser.github.com/spec/v1", "a Git LFS pointer, not the data", fetch_lfs},
    {0, "/annex/objects/", "a git-annex pointer, not the data", "fetch the data with git annex get"},
    {0, "outs:\n- ", "a DVC pointer, not the data", fetch_dvc},
    {0, "# xet version", "a Xet pointer, not the data", "fetch the data with git xet checkout"},
    {0, "x\x01", "zlib data", decompress},
    {0, "x\x9C", "zlib data", decompress},
    {0, "x\xDA", "zlib data", decompress},
};

// Returns true if most bytes after the first line break are in lines of UTF-8 without control characters: then a first
// record that looks like UTF-16 is only damaged. Lines of UTF-16 have zeros, or bytes that are not UTF-8.
bool has_lines_of_utf8(std::string_view start) {
  const size_t first = start.find('\n');
  if (first == std::string_view::npos) return false;
  const std::string_view rest = start.substr(first + 1);
  size_t readable = 0;
  for (size_t begin = 0; begin < rest.size();) {
    const std::string_view line = rest.substr(begin, rest.find('\n', begin) - begin);
    begin += line.size() + 1;
    if (find_invalid_utf8(line) == line.size() && std::none_of(line.begin(), line.end(), is_control))
      readable += line.size() + 1;
  }
  return readable * 4 > rest.size() * 3;
}

// Returns iconv's name of the UTF-16 or UTF-32 that a text is in; empty if it is in neither. Without a byte order mark
// the name ends with BE or LE: ASCII in UTF-16 has a zero in every second byte. Most characters in UTF-32 have two
// zeros in the same half of their four bytes.
std::string_view wide_encoding(std::string_view start) {
  if (has_lines_of_utf8(start)) return {};
  if (start.starts_with(std::string_view("\xFF\xFE\0\0", 4)) ||
      start.starts_with(std::string_view("\0\0\xFE\xFF", 4))) {
    return "UTF-32";
  }
  if (start.starts_with("\xFF\xFE") || start.starts_with("\xFE\xFF")) return "UTF-16";
  const std::string_view some = start.substr(0, 1000);
  if (some.size() < 4) return {};
  std::array<size_t, 4> zeros{};
  for (size_t i = 0; i < some.size(); ++i) zeros[i % 4] += some[i] == '\0' ? 1 : 0;
  const size_t quarter = some.size() / 4;
  const auto is_zero = [&](size_t at) { return zeros[at] * 10 > quarter * 9; };
  if (is_zero(0) && is_zero(1) && !is_zero(3)) return "UTF-32BE";
  if (is_zero(2) && is_zero(3) && !is_zero(0)) return "UTF-32LE";
  const size_t even = zeros[0] + zeros[2];
  const size_t odd = zeros[1] + zeros[3];
  const bool is_wide = std::max(even, odd) * 4 > some.size() && std::min(even, odd) * 20 < some.size();
  return is_wide ? (even > odd ? "UTF-16BE" : "UTF-16LE") : std::string_view();
}

// Refuses a zip archive. The message names the program that writes such archives, if it is known.
[[noreturn]] void refuse_zip(const std::filesystem::path& path, std::string_view start) {
  constexpr size_t length_at = 26;
  constexpr size_t name_at = 30;
  const size_t length = start.size() < name_at ? 0 : static_cast<uint8_t>(start[length_at]);
  const std::string_view first = start.substr(std::min(name_at, start.size()), length);
  for (const ZipForm& form : zip_forms) {
    const bool has_entries = (first.starts_with(form.first_entry) || first.ends_with(form.first_entry)) &&
                             start.find(form.entry) != std::string_view::npos;
    const bool is_named = ::strcasecmp(path.extension().c_str(), form.suffix) == 0;
    if (has_entries || is_named) refuse_format(path, form.name, form.remedy);
  }
  refuse_format(path, "a zip archive", unpack);
}

// Refuses tokens that have no header: the .bin beside an index, and one that holds bytes which no text has.
void refuse_bare_tokens(const std::filesystem::path& path, std::string_view start) {
  const bool is_compressed = path.extension() != ".bin" && path.stem().extension() == ".bin";
  if (path.extension() != ".bin" && !is_compressed) return;
  const std::filesystem::path prefix = std::filesystem::path(path).replace_extension();
  std::error_code ignored;
  if (!is_compressed && std::filesystem::exists(token_file_path(prefix, ".idx"), ignored))
    refuse_format(path, "a token file with an index",
                  fmt::format("it is not packed again: name its PREFIX, {}, in data.train, or join token files with "
                              "`gptrain data join`",
                              prefix.native()));
  if (start.starts_with("\xFF\xFE") || start.starts_with("\xFE\xFF")) return;
  if (std::any_of(start.begin(), start.end(), is_control))
    refuse_format(path, "a token file by its name, and no text", not_packed_again);
}

}  // namespace

bool is_control(char c) {
  return static_cast<uint8_t>(c) < 0x20 && std::string_view("\t\n\v\f\r\x1B").find(c) == std::string_view::npos;
}

void refuse_format(const std::filesystem::path& path, std::string_view is, std::string_view remedy) {
  throw Error(ExitCode::data, "{} is {}: {}", path.native(), is, remedy);
}

bool is_parquet(std::string_view start) { return is_parquet_with("PAR1", start); }

void refuse_foreign_format(const std::filesystem::path& path, std::string_view start) {
  if (is_tar_header(start)) refuse_format(path, "a tar archive", unpack);
  if (is_parquet_with("PARE", start)) refuse_format(path, "an encrypted Parquet file", "decrypt it");
  if (start.starts_with("PK\x03\x04")) refuse_zip(path, start);
  for (const Magic& magic : foreign) {
    if (start.size() < magic.at || !start.substr(magic.at).starts_with(magic.bytes)) continue;
    refuse_format(path, magic.name, magic.remedy);
  }
  refuse_bare_tokens(path, start);
  const std::string encoding(wide_encoding(start));
  if (encoding.empty() || path.extension() == ".npy") return;  // refused by its name later
  // Ids below 256 in tokens of u16 or u32 look the same.
  const bool may_be_tokens = encoding.ends_with("LE");
  refuse_format(
      path, fmt::format("text in {}{}", encoding, may_be_tokens ? ", or a token file" : ""),
      fmt::format("convert {} to UTF-8 with: iconv -f {} -t UTF-8 IN >OUT{}", may_be_tokens ? "a text" : "it", encoding,
                  may_be_tokens ? fmt::format("; a token file is {}", not_packed_again.substr(6)) : ""));
}

}  // namespace gptrain::data
