#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "catch.h"
#include "helpers.h"

using namespace gptrain;
using namespace checkpoint_test;
using nlohmann::json;

namespace {

// Builds a safetensors file from the format's definition: length, header, data.
std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  text += header;
  for (size_t i = 0; i < data_bytes; ++i) text += static_cast<char>(i);
  return text;
}

std::string header_error(const std::filesystem::path& folder, const std::string& content) {
  write_file(folder / "x.safetensors", content);
  return error_of([&] { read_safetensors_header(InputFile(folder / "x.safetensors")); });
}

uint32_t stream(const InputFile& file, const SafetensorsTensor& tensor, const SafetensorsPiece& piece) {
  return stream_tensor(file, tensor.offset, tensor.bytes, piece);
}

}  // namespace

TEST_CASE("A written file has the bytes of the format", "[safetensors]") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const std::vector<float> values = {1.5F, -2.0F, 3.25F, 0.0F, 5.0F, 6.0F};
  const std::vector<uint16_t> words = {1, 2, 3};
  SafetensorsWriter writer(
      path,
      {{"b", DType::f32, {2, 3}}, {"", DType::bf16, {3}}, {"none", DType::u8, {4, 0}}, {"\"a\"\n", DType::f32, {}}},
      {{"key", "text \xC3\xA9"}});
  const uint32_t crc = writer.write(values.data(), 24);
  CHECK(writer.write(words.data(), 6) == crc32c(words.data(), 6));
  CHECK(writer.write(nullptr, 0) == 0);
  writer.write(values.data() + 2, 4);
  writer.finish();
  CHECK(crc == crc32c(values.data(), 24));

  const std::string text = read_file(path);
  REQUIRE(text.size() == static_cast<size_t>(writer.file_bytes()));
  uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  CHECK(length % 8 == 0);
  CHECK(text[8] == '{');
  REQUIRE(text.size() == 8 + length + 34);
  const std::string header_text = text.substr(8, length);
  const size_t end = header_text.find_last_not_of(' ');
  CHECK(header_text[end] == '}');
  CHECK(header_text.size() - end - 1 < 8);
  const json header = json::parse(header_text);
  CHECK(header == json::parse(R"({"b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "": {"dtype": "BF16", "shape": [3], "data_offsets": [24, 30]},
    "none": {"dtype": "U8", "shape": [4, 0], "data_offsets": [30, 30]},
    "\"a\"\n": {"dtype": "F32", "shape": [], "data_offsets": [30, 34]},
    "__metadata__": {"key": "text é"}})"));
  CHECK(std::memcmp(text.data() + 8 + length, values.data(), 24) == 0);
  CHECK(std::memcmp(text.data() + 8 + length + 24, words.data(), 6) == 0);
  CHECK(writer.header_crc32c() == crc32c(text.data(), 8 + length));

  const InputFile file(path);
  const SafetensorsHeader read = read_safetensors_header(file);
  REQUIRE(read.tensors.size() == 4);
  CHECK(read.crc32c == writer.header_crc32c());
  CHECK(read.metadata == SafetensorsMetadata{{"key", "text \xC3\xA9"}});
  CHECK(read.tensors[0].name == "b");
  CHECK(read.tensors[0].shape == std::vector<int64_t>{2, 3});
  CHECK(read.tensors[1].name.empty());
  CHECK(read.tensors[1].dtype == DType::bf16);
  CHECK(read.tensors[2].bytes == 0);
  CHECK(read.tensors[3].offset == static_cast<int64_t>(8 + length + 30));
  CHECK(stream(file, read.tensors[0], [&](const std::byte* data, int64_t offset, int64_t bytes) {
          CHECK(offset == 0);
          CHECK(bytes == 24);
          CHECK(std::memcmp(data, values.data(), 24) == 0);
        }) == crc);
}

TEST_CASE("A tensor larger than the buffers streams through whole", "[safetensors]") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const Tensor tensor = make_tensor("t", {3, 300'007});
  SafetensorsWriter writer(path, {{"t", DType::f32, tensor.shape}}, {});
  const auto bytes = static_cast<int64_t>(tensor.data.size() * 4);
  const uint32_t crc = writer.write(tensor.data.data(), bytes);
  writer.finish();
  CHECK(crc == crc32c(tensor.data.data(), static_cast<size_t>(bytes)));
  const InputFile file(path);
  int64_t expected_offset = 0;
  bool same = true;
  const auto header = read_safetensors_header(file);
  CHECK(stream(file, header.tensors.at(0), [&](const std::byte* data, int64_t offset, int64_t n) {
          same = same && offset == expected_offset &&
                 std::memcmp(data, tensor.data.data() + offset / 4, static_cast<size_t>(n)) == 0;
          expected_offset += n;
        }) == crc);
  CHECK(same);
  CHECK(expected_offset == bytes);
}

TEST_CASE("A file another program wrote is read: any order, spaces, no metadata", "[safetensors]") {
  const TemporaryFolder folder;
  write_file(folder.path() / "x", file_of(R"({ "z": {"shape":[2],"dtype":"I64","data_offsets":[6,22]},
    "a": {"data_offsets":[0,6],"dtype":"U16","shape":[3,1]} }     )",
                                          22));
  const auto header = read_safetensors_header(InputFile(folder.path() / "x"));
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.tensors[0].name == "a");
  CHECK(header.tensors[1].name == "z");
  CHECK(header.tensors[1].bytes == 16);
  CHECK(header.metadata.empty());
}

TEST_CASE("Every fault of a header is refused with the file's name and the reason", "[safetensors]") {
  const TemporaryFolder folder;
  const auto tensor = [](const std::string& shape, const std::string& offsets, const std::string& dtype = "F32") {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  struct Case {
    std::string content;
    std::string reason;
  };
  const std::string a = R"({"a":)" + tensor("[2]", "[0,8]");
  std::string endless(8, '\xFF');
  std::string too_long = file_of("{}", 0);
  too_long[0] = 3;
  const Case cases[] = {
      {"", "0 bytes are too few for a header"},
      {"1234567", "7 bytes are too few for a header"},
      {"version https://git-lfs.github.com/spec/v1", "it is a Git LFS pointer, not the file itself"},
      {endless + "{}", "a header of 18446744073709551615 bytes is beyond the format's limit"},
      {too_long, "its header of 3 bytes goes beyond the end of the file, which has 10 bytes"},
      {file_of("", 0), "the header does not begin with '{'"},
      {file_of(" {}", 0), "the header does not begin with '{'"},
      {file_of("{\"a\":", 0), "the header is not valid JSON"},
      {file_of("{} x", 0), "the header is not valid JSON"},
      {file_of(a + R"(,"a":)" + tensor("[2]", "[0,8]") + "}", 8), "the header names \"a\" twice"},
      {file_of(R"({"a":3})", 0), "tensor \"a\" is not described by"},
      {file_of(R"({"a":{"dtype":"F32","shape":[]}})", 4), "tensor \"a\" is not described by"},
      {file_of(R"({"a":)" + tensor("[1]", "[0]") + "}", 4), "tensor \"a\" is not described by"},
      {file_of(R"({"a":)" + tensor("[2]", "[0,4]", "F4") + "}", 4), "dtype \"F4\", which is not supported"},
      {file_of(R"({"a":)" + tensor("[-1]", "[0,4]") + "}", 4), "its shape holds -1"},
      {file_of(R"({"a":)" + tensor("[1.0]", "[0,4]") + "}", 4), "its shape holds 1.0"},
      {file_of(R"({"a":)" + tensor("[1]", "[0,18446744073709551615]") + "}", 4),
       "data_offsets holds 18446744073709551615"},
      {file_of(R"({"a":)" + tensor("[3]", "[0,8]") + "}", 8), "tensor \"a\" has 8 bytes of data, but F32 of [3]"},
      {file_of(R"({"a":)" + tensor("[1]", "[8,4]") + "}", 8), "tensor \"a\" has -4 bytes of data"},
      {file_of(R"({"a":)" + tensor("[4294967296,4294967296]", "[0,8]") + "}", 8), "tensor \"a\" has 8 bytes of data"},
      {file_of(R"({"a":)" + tensor("[2]", "[4,12]") + "}", 12),
       "tensor \"a\" begins at byte 4 of the data, where 0 was"},
      {file_of(a + R"(,"b":)" + tensor("[1]", "[12,16]") + "}", 16),
       "\"b\" begins at byte 12 of the data, where 8 was"},
      {file_of(a + R"(,"b":)" + tensor("[1]", "[4,8]") + "}", 8),
       "\"b\" begins at byte 4 of the data, where 8 was due"},
      {file_of(a + "}", 7), "tensor \"a\" goes beyond the end of the file"},
      {file_of(a + "}", 9), "bytes, but its header describes"},
      {file_of(R"({"__metadata__":[]})", 0), "__metadata__ is not an object"},
      {file_of(R"({"__metadata__":{"k":1}})", 0), "something else than a text under \"k\""},
  };
  for (const Case& c : cases) {
    INFO(c.content.substr(c.content.size() < 8 ? 0 : 8));
    const std::string message = header_error(folder.path(), c.content);
    CHECK(lacking(message, {(folder.path() / "x.safetensors").string() + " is damaged: ", c.reason}) == "");
  }
}

TEST_CASE("The writer refuses what the format cannot hold", "[safetensors]") {
  const TemporaryFolder folder;
  int number = 0;
  const auto writing = [&](const std::vector<SafetensorsTensor>& tensors) {
    return error_of([&] { SafetensorsWriter(folder.path() / std::to_string(++number), tensors, {}); });
  };
  CHECK(lacking(writing({{"a", DType::f32, {1}}, {"a", DType::f32, {1}}}), {"two tensors \"a\""}) == "");
  CHECK(lacking(writing({{"__metadata__", DType::f32, {1}}}), {"two tensors \"__metadata__\""}) == "");
  CHECK(lacking(writing({{"a", DType::f32, {INT64_MAX}}}), {"is too large"}) == "");
  CHECK(lacking(writing({{"\xFF", DType::f32, {1}}}), {"not valid UTF-8"}) == "");
  write_file(folder.path() / "there", "x");
  CHECK(lacking(error_of([&] { SafetensorsWriter(folder.path() / "there", {}, {}); }),
                {"cannot create", "there: File exists"}) == "");
}

namespace {

// Returns the share of a file's pages that are in the system's cache.
double cached_share(const std::filesystem::path& path) {
  const auto bytes = static_cast<size_t>(std::filesystem::file_size(path));
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  ::close(descriptor);
  REQUIRE(memory != MAP_FAILED);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((bytes + page - 1) / page);
  REQUIRE(::mincore(memory, bytes, pages.data()) == 0);
  ::munmap(memory, bytes);
  return static_cast<double>(
             std::count_if(pages.begin(), pages.end(), [](unsigned char one) { return (one & 1) != 0; })) /
         static_cast<double>(pages.size());
}

bool is_on_disk(const std::filesystem::path& folder) {
  struct statfs system {};
  return ::statfs(folder.c_str(), &system) == 0 && (system.f_type == 0xef53 || system.f_type == 0x58465342);
}

}  // namespace

TEST_CASE("A large file is written past the system's cache, in pieces of any size", "[safetensors]") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  constexpr int64_t elements = (int64_t{36} << 20) + 1234567;
  std::vector<uint8_t> data(static_cast<size_t>(elements));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 2654435761U >> 13U);
  SafetensorsWriter writer(path, {{"a", DType::u8, {elements}}}, {});
  uint32_t crc = 0;
  int64_t at = 0;
  for (int64_t piece = 1; at < elements; piece = piece * 3 + 1) {  // 1, 4, 13, .. bytes, up to many buffers
    const int64_t n = std::min(piece, elements - at);
    crc = writer.write(data.data() + at, n, crc);
    at += n;
  }
  writer.finish();
  CHECK(crc == crc32c(data.data(), data.size()));
  CHECK(static_cast<int64_t>(std::filesystem::file_size(path)) == writer.file_bytes());
  // Only the end of the file may be cached, which is not a whole block.
  if (is_on_disk(folder.path())) CHECK(cached_share(path) < 0.2);

  const InputFile file(path);
  const auto header = read_safetensors_header(file);
  int64_t wrong = 0;
  CHECK(stream(file, header.tensors.at(0), [&](const std::byte* piece, int64_t offset, int64_t bytes) {
          wrong += std::memcmp(piece, data.data() + offset, static_cast<size_t>(bytes)) != 0;
        }) == crc);
  CHECK(wrong == 0);
}
