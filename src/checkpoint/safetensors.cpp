#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_reason.h"
#include "base/printable.h"
#include "base/text_file.h"
#include "checkpoint/boxes.h"
#include "checkpoint/fault.h"

namespace gptrain::inline checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t length_bytes = 8;
constexpr int64_t header_alignment = 8;  // so that every dtype is aligned when the file is mapped
constexpr const char* metadata_key = "__metadata__";
constexpr int64_t write_bytes = int64_t{1} << 20;          // fits the CPU's cache between checksum and write
constexpr int64_t least_direct_bytes = int64_t{32} << 20;  // a smaller file is soon out of the cache
constexpr int64_t read_bytes = int64_t{1} << 20;

// Names of dtypes; the first name of a dtype is the one written. Other programs store masks as BOOL beside the weights.
constexpr std::pair<DType, std::string_view> dtype_names[] = {
    {DType::f64, "F64"}, {DType::f32, "F32"}, {DType::bf16, "BF16"}, {DType::f16, "F16"}, {DType::i64, "I64"},
    {DType::i32, "I32"}, {DType::u16, "U16"}, {DType::u8, "U8"},     {DType::u8, "BOOL"}};

std::string_view format_dtype(DType dtype) {
  for (const auto& [known, name] : dtype_names) {
    if (known == dtype) return name;
  }
  return "?";
}

std::optional<DType> parse_dtype(std::string_view text) {
  for (const auto& [dtype, name] : dtype_names) {
    if (name == text) return dtype;
  }
  return std::nullopt;
}

std::optional<int64_t> tensor_bytes(const SafetensorsTensor& tensor) {
  const auto elements = num_elements(tensor.shape);
  int64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(*elements, dtype_bytes(tensor.dtype), &bytes)) return std::nullopt;
  return bytes;
}

// Returns the header's text, padded: JSON whose keys are in the order of their bytes. Its values are made one
// by one, as all of them together would take several times the memory of the text.
std::string header_text(const std::vector<SafetensorsTensor>& tensors, const SafetensorsMetadata& metadata,
                        int64_t& data_bytes) {
  std::map<std::string_view, std::pair<const SafetensorsTensor*, int64_t>> values;  // null: the metadata
  if (!metadata.empty()) values[metadata_key] = {nullptr, 0};
  data_bytes = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const auto bytes = tensor_bytes(tensor);
    if (!bytes) fault("tensor \"{}\" of shape {} is too large", tensor.name, format_shape(tensor.shape));
    if (tensor.name == metadata_key || !values.try_emplace(tensor.name, &tensor, data_bytes).second)
      fault("two tensors \"{}\"", tensor.name);
    data_bytes += *bytes;
  }
  try {
    std::string text;
    // The first turn finds the text's size, so that the second does not move it while it grows.
    for (const bool counts : {true, false}) {
      size_t size = 0;
      for (const auto& [name, value] : values) {
        const auto [tensor, begin] = value;
        const json entry = tensor == nullptr ? json(metadata)
                                             : json{{"dtype", format_dtype(tensor->dtype)},
                                                    {"shape", tensor->shape},
                                                    {"data_offsets", {begin, begin + *tensor_bytes(*tensor)}}};
        const std::string member = (size > 0 ? "," : "{") + json_text(json(name)) + ":" + json_text(entry);
        size += member.size();
        if (!counts) text += member;
      }
      constexpr size_t most_at_end = 1 + header_alignment;
      if (counts) text.reserve(size + most_at_end);
    }
    text += text.empty() ? "{}" : "}";
    const auto unpadded = static_cast<int64_t>(text.size());
    text.append((header_alignment - unpadded % header_alignment) % header_alignment, ' ');
    return text;
  } catch (const json::exception&) {
    fault("a tensor's name is not valid UTF-8");
  }
}

json parse_header(std::string_view text) {
  if (text.empty() || text.front() != '{') fault("the header does not begin with '{{'");
  // The parser keeps the last of equal keys; a file that says two things about one tensor is refused.
  std::set<std::string> keys;
  const auto no_key_twice = [&](const std::string& key, int) {
    if (!keys.insert(key).second) fault("the header names \"{}\" twice", key);
  };
  json header;
  try {
    header = parse_json(text, no_key_twice);
  } catch (const json::exception& e) {
    fault("the header is not valid JSON: {}", json_reason(e));
  }
  if (!header.is_object()) fault("the header is not a JSON object");
  return header;
}

int64_t whole_number(const json& value, const std::string& name, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    fault("tensor \"{}\": {} holds {}, which is not a size", name, what, json_text(value));
  }
  return value.get<int64_t>();
}

SafetensorsTensor parse_tensor(const std::string& name, const json& value) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets") || !value["dtype"].is_string() || !value["shape"].is_array() ||
      !value["data_offsets"].is_array() || value["data_offsets"].size() != 2) {
    fault("tensor \"{}\" is not described by a dtype, a shape and two data_offsets", name);
  }
  SafetensorsTensor tensor;
  tensor.name = name;
  const auto dtype = parse_dtype(value["dtype"].get<std::string>());
  if (!dtype) fault("tensor \"{}\" has dtype {}, which is not supported", name, json_text(value["dtype"]));
  tensor.dtype = *dtype;
  for (const json& dim : value["shape"]) tensor.shape.push_back(whole_number(dim, name, "its shape"));
  tensor.offset = whole_number(value["data_offsets"][0], name, "data_offsets");
  tensor.bytes = whole_number(value["data_offsets"][1], name, "data_offsets") - tensor.offset;
  const auto needed = tensor_bytes(tensor);
  if (!needed || tensor.bytes != *needed) {
    fault("tensor \"{}\" has {} bytes of data, but {} of {}", name, tensor.bytes, format_dtype(tensor.dtype),
          format_shape(tensor.shape));
  }
  return tensor;
}

SafetensorsMetadata parse_metadata(const json& value) {
  if (!value.is_object()) fault("{} is not an object", metadata_key);
  SafetensorsMetadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) fault("{} holds something else than a text under \"{}\"", metadata_key, key);
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

std::string read_header(const InputFile& file) {
  if (file.bytes() < length_bytes) fault("{} bytes are too few for a header", file.bytes());
  uint64_t length = 0;
  file.read(0, &length, length_bytes);
  if (std::memcmp(&length, git_lfs_pointer.data(), length_bytes) == 0)
    fault("it is a Git LFS pointer, not the file itself: fetch it with git lfs pull");
  if (length > uint64_t{max_tensor_header_bytes}) fault("a header of {} bytes is beyond the format's limit", length);
  const auto header_bytes = static_cast<int64_t>(length);
  if (header_bytes > file.bytes() - length_bytes) {
    fault("its header of {} bytes goes beyond the end of the file, which has {} bytes", header_bytes, file.bytes());
  }
  std::string bytes(length_bytes + header_bytes, '\0');
  std::memcpy(bytes.data(), &length, length_bytes);
  file.read(length_bytes, bytes.data() + length_bytes, header_bytes);
  return bytes;
}

SafetensorsHeader parse_whole_header(std::string_view bytes, int64_t file_bytes) {
  SafetensorsHeader header;
  header.crc32c = crc32c(bytes.data(), bytes.size());
  const json parsed = parse_header(bytes.substr(length_bytes));
  for (const auto& [name, value] : parsed.items()) {
    if (name == metadata_key) {
      header.metadata = parse_metadata(value);
    } else {
      header.tensors.push_back(parse_tensor(name, value));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const auto& a, const auto& b) { return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes); });
  const auto data_begin = static_cast<int64_t>(bytes.size());
  int64_t end = 0;
  for (SafetensorsTensor& tensor : header.tensors) {
    if (tensor.offset != end) {
      fault("tensor \"{}\" begins at byte {} of the data, where {} was due", tensor.name, tensor.offset, end);
    }
    // Cannot overflow: a tensor that went beyond the file would be found here, before the next is added.
    if (tensor.bytes > file_bytes - data_begin - end) {
      fault("tensor \"{}\" goes beyond the end of the file, which has {} bytes", tensor.name, file_bytes);
    }
    end += tensor.bytes;
    tensor.offset += data_begin;
  }
  if (data_begin + end != file_bytes) {
    fault("it has {} bytes, but its header describes {}", file_bytes, data_begin + end);
  }
  return header;
}

template <typename Work>
auto of_file(const std::filesystem::path& path, const Work& work) {
  try {
    return work();
  } catch (const Error& e) {
    throw Error(e.code(), "{} is damaged: {}", path.string(), e.what());
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                                     const SafetensorsMetadata& metadata)
    : file_(path) {
  int64_t data_bytes = 0;
  std::string text;
  try {
    text = header_text(tensors, metadata, data_bytes);
  } catch (const Error& e) {
    throw Error(e.code(), "cannot write {}: {}", path.string(), e.what());
  }
  const uint64_t length = text.size();
  if (length > uint64_t{max_tensor_header_bytes}) {
    throw Error(ExitCode::checkpoint, "cannot write {}: a header of {} bytes is beyond the limit of safetensors",
                path.string(), length);
  }
  header_crc32c_ = crc32c(text.data(), text.size(), crc32c(&length, length_bytes));
  file_bytes_ = length_bytes + static_cast<int64_t>(length) + data_bytes;
  if (file_bytes_ >= least_direct_bytes) file_.write_past_cache();
  file_.write(&length, length_bytes);
  file_.write(text.data(), static_cast<int64_t>(length));
}

int64_t safetensors_file_bytes(const std::vector<SafetensorsTensor>& tensors, const SafetensorsMetadata& metadata) {
  int64_t data_bytes = 0;
  const std::string text = header_text(tensors, metadata, data_bytes);
  return length_bytes + static_cast<int64_t>(text.size()) + data_bytes;
}

uint32_t SafetensorsWriter::write(const void* data, int64_t bytes, uint32_t crc) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const int64_t n = std::min(bytes, write_bytes);
    crc = crc32c(at, n, crc);
    file_.write(at, n);
    at += n;
    bytes -= n;
  }
  return crc;
}

void SafetensorsWriter::finish() { file_.sync_and_close(); }

std::string read_safetensors_header_bytes(const InputFile& file) {
  return of_file(file.path(), [&] { return read_header(file); });
}

SafetensorsHeader parse_safetensors_header(std::string_view bytes, const std::filesystem::path& path,
                                           int64_t file_bytes) {
  return of_file(path, [&] { return parse_whole_header(bytes, file_bytes); });
}

size_t safetensors_header_bytes(std::string_view headers) {
  uint64_t length = 0;
  if (headers.size() < length_bytes) return 0;
  std::memcpy(&length, headers.data(), length_bytes);
  return length > headers.size() - length_bytes ? 0 : length_bytes + length;
}

SafetensorsHeader read_safetensors_header(const InputFile& file) {
  return parse_safetensors_header(read_safetensors_header_bytes(file), file.path(), file.bytes());
}

uint32_t stream_tensor(const InputFile& file, int64_t offset, int64_t bytes, const SafetensorsPiece& piece) {
  std::vector<std::byte> buffer(std::min(bytes, read_bytes));
  uint32_t crc = 0;
  for (int64_t at = 0; at < bytes; at += read_bytes) {
    const int64_t n = std::min(read_bytes, bytes - at);
    file.read(offset + at, buffer.data(), n);
    crc = crc32c(buffer.data(), n, crc);
    piece(buffer.data(), at, n);
  }
  return crc;
}

}  // namespace gptrain::checkpoint
