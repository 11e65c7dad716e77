// Extracts the text member of JSON objects fast, with simdjson. json_member.h reads JSON that simdjson refuses, and
// everything in a build without simdjson.
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

  // Do the same as JsonMember. REQUIRES: 64 bytes after `json` are readable. `text` is valid until the next call.
  bool text_of(std::string_view json, const std::string& field, std::string_view& text, std::string& fault);
  void texts_of(std::string_view json, const std::string& field, const OnJsonDocument& document);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain::data
