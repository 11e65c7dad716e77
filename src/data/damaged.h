// Errors for damaged token files.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "base/error.h"
#include "data/mapped_file.h"

namespace gptrain::inline data {

// Throws Error(data) with file and byte.
template <typename... Args>
[[noreturn]] void damaged(const MappedFile& file, int64_t byte, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::data, "{}, byte {}: {}", file.path().native(), byte,
              fmt::format(format, std::forward<Args>(args)...));
}

// A token that no vocabulary, or not the model's, holds.
class BadToken : public Error {
 public:
  BadToken(int64_t position, const std::string& message) : Error(ExitCode::data, message), position_(position) {}
  int64_t position() const { return position_; }  // index in the file's tokens

 private:
  int64_t position_;
};

// A block of tokens that does not have its checksum, so that none of its samples can be read.
class BadChecksum : public Error {
 public:
  using Error::Error;
};

}  // namespace gptrain::data
