// The text member of JSON objects: by simdjson, or by nlohmann's library in a build without it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace gptrain {

// One thread at a time.
class JsonTexts {
 public:
  explicit JsonTexts(std::string field);
  ~JsonTexts();
  JsonTexts(const JsonTexts&) = delete;
  JsonTexts& operator=(const JsonTexts&) = delete;

  // Gives `text` the member of the object that `json` is, or `fault` why there is none: not valid JSON (lone surrogates
  // are not), no object, no such member, no string. 64 bytes behind `json` may be read. Valid until the next call.
  bool text_of(std::string_view json, std::string_view& text, std::string& fault);

  // Calls `document(text, fault)` for each element of the list that `json` is, or once if it is an object; `fault` is
  // empty where there is a text.
  void texts_of(std::string_view json, const std::function<void(std::string_view, const std::string&)>& document);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain
