// Reads event files back with an independent reader: framing, bitwise CRC-32C and protobuf fields share nothing with
// the writer.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>

#include "catch.h"
#include "report/tensorboard.h"
#include "train/metrics.h"
#include "unit/temporary_folder.h"

using namespace gptrain;

namespace {

uint32_t bitwise_masked_crc(const std::string& bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <typename T>
T read_raw(const std::string& bytes, size_t at) {
  REQUIRE(at + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

std::vector<std::string> records_in(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    const auto length = read_raw<uint64_t>(file, at);
    REQUIRE(read_raw<uint32_t>(file, at + 8) == bitwise_masked_crc(file.substr(at, 8)));
    records.push_back(file.substr(at + 12, length));
    REQUIRE(read_raw<uint32_t>(file, at + 12 + length) == bitwise_masked_crc(records.back()));
    at += 12 + length + 4;
  }
  return records;
}

struct Field {
  uint64_t number = 0;  // varint, or the raw bits of a fixed32 or fixed64
  std::string bytes;
};

uint64_t read_varint(const std::string& bytes, size_t& at) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = read_raw<unsigned char>(bytes, at++);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

std::multimap<uint64_t, Field> read_message(const std::string& bytes) {
  std::multimap<uint64_t, Field> fields;
  for (size_t at = 0; at < bytes.size();) {
    const uint64_t key = read_varint(bytes, at);
    Field field;
    switch (key & 7) {
      case 0:
        field.number = read_varint(bytes, at);
        break;
      case 1:
        field.number = read_raw<uint64_t>(bytes, at);
        at += 8;
        break;
      case 5:
        field.number = read_raw<uint32_t>(bytes, at);
        at += 4;
        break;
      case 2: {
        const uint64_t length = read_varint(bytes, at);
        REQUIRE(at + length <= bytes.size());
        field.bytes = bytes.substr(at, length);
        at += length;
        break;
      }
      default:
        FAIL("unknown wire type " << (key & 7));
    }
    fields.emplace(key >> 3, field);
  }
  return fields;
}

const Field& field_of(const std::multimap<uint64_t, Field>& message, uint64_t number) {
  REQUIRE(message.count(number) == 1);
  return message.find(number)->second;
}

std::map<std::string, float> scalars_of(const std::multimap<uint64_t, Field>& event) {
  std::map<std::string, float> scalars;
  for (const auto& [number, value] : read_message(field_of(event, 5).bytes)) {
    REQUIRE(number == 1);
    const auto fields = read_message(value.bytes);
    scalars[field_of(fields, 1).bytes] = std::bit_cast<float>(static_cast<uint32_t>(field_of(fields, 2).number));
  }
  return scalars;
}

}  // namespace

TEST_CASE("An event file starts with its version and holds the scalars of each step") {
  const TemporaryFolder out;
  {
    MetricsWriter writer(out.path(), -1);
    StepMetrics metrics;
    metrics.step = 300;  // two bytes of varint
    metrics.loss = 3.25;
    metrics.grad_norm = std::numeric_limits<double>::infinity();
    metrics.lr = 6e-4;
    metrics.tokens_per_second = 57100;
    metrics.step_seconds = 0.5;
    metrics.mfu = 0.25;
    metrics.peak_bytes = int64_t{1} << 40;
    writer.write_step(metrics);
    writer.write_validation(301, {2.5});
  }
  const std::vector<std::string> names = file_names(out / "tb");
  REQUIRE(names.size() == 1);
  CHECK(names[0].find("tfevents") != std::string::npos);
  const std::vector<std::string> records = records_in(out / "tb" / names[0]);
  REQUIRE(records.size() == 4);

  const auto version = read_message(records[0]);
  CHECK(field_of(version, 3).bytes == "brain.Event:2");
  CHECK(std::bit_cast<double>(field_of(version, 1).number) > 1.6e9);  // seconds since 1970

  const auto session = read_message(records[1]);
  CHECK(field_of(session, 2).number == 0);
  CHECK(field_of(read_message(field_of(session, 7).bytes), 1).number == 1);

  const auto step = read_message(records[2]);
  CHECK(field_of(step, 2).number == 300);
  CHECK(std::bit_cast<double>(field_of(step, 1).number) >= std::bit_cast<double>(field_of(version, 1).number));
  CHECK(scalars_of(step) == std::map<std::string, float>{{"loss", 3.25f},
                                                         {"grad_norm", std::numeric_limits<float>::infinity()},
                                                         {"lr", 6e-4f},
                                                         {"tokens_per_second", 57100.0f},
                                                         {"step_seconds", 0.5f},
                                                         {"mfu", 0.25f},
                                                         {"peak_bytes", 1099511627776.0f}});
  const auto validation = read_message(records[3]);
  CHECK(field_of(validation, 2).number == 301);
  CHECK(scalars_of(validation) == std::map<std::string, float>{{"validation_loss", 2.5f}});
}

TEST_CASE("A resumed run starts a later event file that purges the steps it repeats") {
  const TemporaryFolder folder;
  for (const int64_t resume_step : {-1, 4, 4}) TensorBoardWriter(folder.path(), resume_step).write(5, {{"loss", 1.5}});
  const std::vector<std::string> names = file_names(folder.path());
  REQUIRE(names.size() == 3);  // within one second, and still three names in order
  const std::vector<std::string> fresh = records_in(folder / names[0]);
  CHECK(fresh.size() == 3);
  for (const size_t resumed : {1, 2}) {
    const std::vector<std::string> records = records_in(folder / names[resumed]);
    REQUIRE(records.size() == 3);
    const auto start = read_message(records[1]);
    CHECK(field_of(start, 2).number == 5);  // the first step to forget
    CHECK(field_of(read_message(field_of(start, 7).bytes), 1).number == 1);
  }
}
