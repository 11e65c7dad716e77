#include "report/tensorboard.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <concepts>
#include <fmt/format.h>
#include <system_error>

#include "base/crc32c.h"
#include "base/directory.h"
#include "base/error.h"

namespace gptrain::inline report {
namespace {

constexpr std::string_view file_name_prefix = "events.out.tfevents.";

// Field numbers of TensorFlow's event.proto and summary.proto.
constexpr uint32_t event_wall_time = 1, event_step = 2, event_file_version = 3, event_summary = 5,
                   event_session_log = 7;
constexpr uint32_t summary_value = 1;
constexpr uint32_t value_tag = 1, value_simple_value = 2;
constexpr uint32_t session_log_status = 1;
constexpr uint64_t session_log_start = 1;

enum class WireType : uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void append_varint(std::string& out, uint64_t number) {
  for (; number >= 0x80; number >>= 7) out += static_cast<char>(number | 0x80);
  out += static_cast<char>(number);
}

void append_key(std::string& out, uint32_t field, WireType type) {
  append_varint(out, (field << 3) | static_cast<uint32_t>(type));
}

template <std::unsigned_integral T>
void append_little_endian(std::string& out, T number) {
  for (size_t byte = 0; byte < sizeof(T); ++byte) out += static_cast<char>(number >> (8 * byte));
}

void append_varint_field(std::string& out, uint32_t field, uint64_t number) {
  append_key(out, field, WireType::varint);
  append_varint(out, number);
}

void append_double_field(std::string& out, uint32_t field, double number) {
  append_key(out, field, WireType::fixed64);
  append_little_endian(out, std::bit_cast<uint64_t>(number));
}

void append_float_field(std::string& out, uint32_t field, float number) {
  append_key(out, field, WireType::fixed32);
  append_little_endian(out, std::bit_cast<uint32_t>(number));
}

void append_bytes_field(std::string& out, uint32_t field, std::string_view bytes) {
  append_key(out, field, WireType::bytes);
  append_varint(out, bytes.size());
  out += bytes;
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes.data(), bytes.size());
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard reads the files of a folder in the order of their names and never goes back, so the number in the name
// is the time, or one more than the newest file's where runs follow each other within a second.
std::filesystem::path next_file_name(const std::filesystem::path& folder) {
  auto number = static_cast<int64_t>(wall_seconds());
  std::error_code error;
  for (const std::filesystem::path& path : paths_in(folder, error)) {
    const std::string name = path.filename().string();
    if (!name.starts_with(file_name_prefix)) continue;
    int64_t used = 0;
    std::from_chars(name.data() + file_name_prefix.size(), name.data() + name.size(), used);
    number = std::max(number, used + 1);
  }
  if (error) throw Error(ExitCode::usage, "cannot read the folder {}: {}", folder.string(), error.message());
  return folder / fmt::format("{}{:010}.gptrain", file_name_prefix, number);
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, int64_t resume_step)
    : file_(next_file_name(folder), OutputFile::Mode::create) {
  event_.clear();
  append_double_field(event_, event_wall_time, wall_seconds());
  append_bytes_field(event_, event_file_version, "brain.Event:2");
  write_event();
  // A session start at a step makes TensorBoard drop earlier events of that step and later ones. TensorBoard drops
  // nothing at the first session start of a folder, so the first file has one too.
  begin_event(std::max<int64_t>(resume_step, -1) + 1);
  value_.clear();
  append_varint_field(value_, session_log_status, session_log_start);
  append_bytes_field(event_, event_session_log, value_);
  write_event();
}

void TensorBoardWriter::write(int64_t step, std::initializer_list<Scalar> scalars) {
  summary_.clear();
  for (const Scalar& scalar : scalars) {
    value_.clear();
    append_bytes_field(value_, value_tag, scalar.tag);
    append_float_field(value_, value_simple_value, static_cast<float>(scalar.value));
    append_bytes_field(summary_, summary_value, value_);
  }
  begin_event(step);
  append_bytes_field(event_, event_summary, summary_);
  write_event();
}

void TensorBoardWriter::begin_event(int64_t step) {
  event_.clear();
  append_double_field(event_, event_wall_time, wall_seconds());
  append_varint_field(event_, event_step, static_cast<uint64_t>(step));
}

void TensorBoardWriter::write_event() {
  record_.clear();
  append_little_endian(record_, static_cast<uint64_t>(event_.size()));
  append_little_endian(record_, masked_crc(record_));
  record_ += event_;
  append_little_endian(record_, masked_crc(event_));
  file_.write(record_);
}

}  // namespace gptrain::report
