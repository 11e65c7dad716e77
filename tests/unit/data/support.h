// Token files built byte by byte, and checks of errors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "unit/temporary_folder.h"

namespace gptrain::test {

// Returns the `count` low bytes of a number, lowest first.
inline std::string little_endian(int64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  return bytes;
}

// A token file by its specification, with every number spelled out so that each can be made wrong.
struct RawTokenFile {
  std::string magic{"MMIDIDX\0\0", 9};
  int64_t version = 1;
  int dtype_code = 8;
  int64_t num_sequences = 0;
  int64_t num_boundaries = 0;
  std::vector<int64_t> lengths;
  std::vector<int64_t> offsets;
  std::vector<int64_t> boundaries;
  std::vector<int64_t> tokens;

  // Has one sequence per document.
  static RawTokenFile of(const std::vector<std::vector<int64_t>>& documents, int dtype_code) {
    RawTokenFile raw;
    raw.dtype_code = dtype_code;
    raw.boundaries.push_back(0);
    for (const auto& document : documents) {
      raw.offsets.push_back(static_cast<int64_t>(raw.tokens.size()) * raw.token_bytes());
      raw.lengths.push_back(static_cast<int64_t>(document.size()));
      raw.boundaries.push_back(static_cast<int64_t>(raw.lengths.size()));
      raw.tokens.insert(raw.tokens.end(), document.begin(), document.end());
    }
    raw.num_sequences = static_cast<int64_t>(raw.lengths.size());
    raw.num_boundaries = static_cast<int64_t>(raw.boundaries.size());
    return raw;
  }

  int token_bytes() const { return dtype_code == 8 ? 2 : 4; }

  std::string bin() const {
    std::string bytes;
    for (const int64_t token : tokens) bytes += little_endian(token, token_bytes());
    return bytes;
  }

  std::string idx() const {
    std::string bytes = magic + little_endian(version, 8) + little_endian(dtype_code, 1) +
                        little_endian(num_sequences, 8) + little_endian(num_boundaries, 8);
    for (const int64_t length : lengths) bytes += little_endian(length, 4);
    for (const int64_t offset : offsets) bytes += little_endian(offset, 8);
    for (const int64_t boundary : boundaries) bytes += little_endian(boundary, 8);
    return bytes;
  }

  void write(const std::filesystem::path& prefix) const {
    write_file(prefix.native() + ".bin", bin());
    write_file(prefix.native() + ".idx", idx());
  }
};

// Writes a file of one document with tokens first, first + 1, ... modulo 60,000.
inline void write_counting_tokens(const std::filesystem::path& prefix, int64_t first, int64_t count) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back((first + i) % 60000);
  RawTokenFile::of({tokens}, 8).write(prefix);
}

// Returns the message of the Error that `action` throws; fails the test if it throws none or one with another exit
// code.
template <typename Action>
std::string error_of(ExitCode code, Action action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  FAIL("no error was thrown");
  return {};
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace gptrain::test
