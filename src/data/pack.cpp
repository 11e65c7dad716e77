#include "data/pack.h"

#include <array>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/json.h"
#include "data/token_file.h"
#include "data/token_writer.h"

namespace gptrain {
namespace {

constexpr size_t chunk_bytes = size_t{1} << 16;
constexpr int64_t progress_step_bytes = int64_t{1} << 20;

[[noreturn]] void throw_unreadable(const std::filesystem::path& input, const std::string& reason) {
  throw Error(ExitCode::data, "cannot read {}: {}", input.native(), reason);
}

// Everything that can be refused before any output exists. Returns the sum of the sizes.
int64_t check_inputs(const PackOptions& options) {
  if (options.inputs.empty()) throw Error(ExitCode::usage, "no input file to pack");
  int64_t total_bytes = 0;
  for (const auto& input : options.inputs) {
    std::error_code error;
    const auto status = std::filesystem::status(input, error);
    if (std::filesystem::is_directory(status)) throw_unreadable(input, "it is a directory; name the files in it");
    if (error) throw_unreadable(input, error.message());
    if (!std::filesystem::is_regular_file(status)) throw_unreadable(input, "not a regular file");
    for (const std::string_view suffix : {".bin", ".idx", ".meta.json"}) {
      const auto output = token_file_path(options.out_prefix, suffix);
      if (std::filesystem::equivalent(input, output, error)) {
        throw Error(ExitCode::data, "{} is an input and would be overwritten; choose another output prefix",
                    output.native());
      }
    }
    const auto size = std::filesystem::file_size(input, error);
    if (error) throw_unreadable(input, error.message());
    total_bytes += static_cast<int64_t>(size);
  }
  return total_bytes;
}

class BytePacker {
 public:
  BytePacker(TokenWriter& writer, int64_t total_bytes, const std::function<void(int64_t, int64_t)>& progress)
      : writer_(writer), total_bytes_(total_bytes), progress_(progress) {}

  void pack(const std::filesystem::path& input) {
    errno = 0;
    std::ifstream stream(input, std::ios::binary);
    if (!stream) throw_unreadable(input, std::generic_category().message(errno));
    if (input.extension() == ".jsonl") {
      pack_jsonl(input, stream);
    } else {
      pack_text(stream);
    }
    if (stream.bad()) throw_unreadable(input, std::generic_category().message(errno));
  }

  const PackResult& result() const { return result_; }

 private:
  void pack_text(std::istream& stream) {
    std::array<char, chunk_bytes> chunk;
    bool empty = true;
    while (stream.read(chunk.data(), chunk.size()), stream.gcount() > 0) {
      const auto count = static_cast<size_t>(stream.gcount());
      append({chunk.data(), count});
      advance(static_cast<int64_t>(count));
      empty = false;
    }
    end_document(empty);
  }

  void pack_jsonl(const std::filesystem::path& input, std::istream& stream) {
    std::string line;
    for (int64_t number = 1; std::getline(stream, line); ++number) {
      // The last line may lack its newline.
      advance(static_cast<int64_t>(line.size()) + (stream.eof() ? 0 : 1));
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const std::string text = text_of_line(input, number, line);
      append(text);
      end_document(text.empty());
    }
  }

  static std::string text_of_line(const std::filesystem::path& input, int64_t number, const std::string& line) {
    nlohmann::json object;
    try {
      object = parse_json(line);
    } catch (const nlohmann::json::exception& error) {
      throw Error(ExitCode::data, "{}, line {}: not valid JSON: {}", input.native(), number, error.what());
    }
    if (!object.is_object()) {
      throw Error(ExitCode::data, "{}, line {}: {} where an object with a member \"text\" is needed", input.native(),
                  number, object.type_name());
    }
    const auto text = object.find("text");
    if (text == object.end()) {
      throw Error(ExitCode::data, "{}, line {}: no member \"text\"", input.native(), number);
    }
    if (!text->is_string()) {
      throw Error(ExitCode::data, "{}, line {}: member \"text\" is of type {}, must be a string", input.native(),
                  number, text->type_name());
    }
    return text->get<std::string>();
  }

  void append(std::string_view bytes) {
    tokens_.assign(reinterpret_cast<const uint8_t*>(bytes.data()),
                   reinterpret_cast<const uint8_t*>(bytes.data()) + bytes.size());
    writer_.append(tokens_);
    result_.tokens += static_cast<int64_t>(bytes.size());
  }

  void end_document(bool empty) {
    if (empty) {
      ++result_.empty_documents;
      return;
    }
    writer_.append({&end_of_document, 1});
    writer_.end_document();
    ++result_.tokens;
    ++result_.documents;
  }

  void advance(int64_t bytes) {
    result_.input_bytes += bytes;
    if (!progress_ || result_.input_bytes < next_report_bytes_) return;
    progress_(result_.input_bytes, total_bytes_);
    next_report_bytes_ = result_.input_bytes + progress_step_bytes;
  }

  TokenWriter& writer_;
  int64_t total_bytes_;
  const std::function<void(int64_t, int64_t)>& progress_;
  int64_t next_report_bytes_ = progress_step_bytes;
  PackResult result_;
  std::vector<int32_t> tokens_;
};

}  // namespace

PackResult pack_bytes(const PackOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t total_bytes = check_inputs(options);
  TokenWriter writer(options.out_prefix, DType::u16);
  BytePacker packer(writer, total_bytes, progress);
  for (const auto& input : options.inputs) packer.pack(input);
  const PackResult& result = packer.result();
  if (result.documents == 0) {
    throw Error(ExitCode::data, "nothing to pack: the inputs, {} first, hold no text", options.inputs[0].native());
  }
  writer.finish();
  if (progress) progress(total_bytes, total_bytes);
  return result;
}

}  // namespace gptrain
