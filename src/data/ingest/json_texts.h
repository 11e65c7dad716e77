// The text member of JSON objects at high speed: simdjson reads what it can, json_member.h the rest, and everything in
// a build without simdjson.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/ingest/json_member.h"

namespace gptrain {

// One thread at a time.
class JsonTexts {
 public:
  explicit JsonTexts(bool replace_invalid);
  ~JsonTexts();
  JsonTexts(const JsonTexts&) = delete;
  JsonTexts& operator=(const JsonTexts&) = delete;

  // As JsonMember's. 64 bytes behind `json` may be read. `text` is valid until the next call.
  bool text_of(std::string_view json, const std::string& field, std::string_view& text, std::string& fault);
  void texts_of(std::string_view json, const std::string& field, const OnJsonDocument& document);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain
