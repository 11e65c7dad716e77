// Extracts the text member of JSON objects fast, with simdjson. json_member.h reads all other JSON, and everything in a
// build without simdjson.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/ingest/json_member.h"

namespace gptrain::inline data {

// Not thread-safe.
class JsonTexts {
 public:
  explicit JsonTexts(bool replace_invalid);
  ~JsonTexts();
  JsonTexts(const JsonTexts&) = delete;
  JsonTexts& operator=(const JsonTexts&) = delete;

  // Do the same as JsonMember. REQUIRES: 64 bytes after the text are readable.
  void texts_of_line(std::string_view line, const std::string& field, const OnJsonDocument& document);
  void texts_of(std::string_view json, const std::string& field, const OnJsonDocument& document);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain::data
