#include "config/json_text.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <utility>

#include "base/json.h"
#include "base/json_scanner.h"
#include "base/printable.h"

namespace gptrain::inline config {
namespace {

// Builds a document from parser events. A frame is an object or array that is still open.
class TreeBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit TreeBuilder(std::string_view text) : text_(text) {}

  JsonText take() { return std::move(result_); }

  bool null() override { return leaf(nullptr); }
  bool boolean(bool value) override { return leaf(value); }
  bool number_integer(number_integer_t value) override { return leaf(value); }
  bool number_unsigned(number_unsigned_t value) override { return leaf(value); }
  bool number_float(number_float_t value, const string_t&) override { return leaf(value); }
  bool string(string_t& value) override { return leaf(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON text has no binary values
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Frame& frame = frames_.back();
    frame.key = std::move(name);
    frame.repeated = !frame.seen.emplace(frame.key, frame.seen.size()).second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    const JsonFault fault = find_json_fault(text_, JsonDialect::with_comments);
    const TextPosition position = position_in_text(text_, fault.at);
    result_.document = nullptr;
    result_.syntax_error =
        fmt::format("{}:{}: syntax error: {}", position.line, position.column, json_fault_reason(text_, fault));
    return false;
  }

 private:
  struct Frame {
    Json* container;
    std::string key;                     // key of the next value, in an object
    std::map<std::string, size_t> seen;  // the object's keys and their positions
    bool repeated = false;               // `key` occurred before
  };

  bool leaf(Json value) {
    put(std::move(value));
    return true;
  }

  bool open(Json empty) {
    frames_.push_back({put(std::move(empty)), {}, {}});
    return true;
  }

  bool close() {
    frames_.pop_back();
    return true;
  }

  Json* put(Json value) {
    if (frames_.empty()) {
      result_.document = std::move(value);
      return &result_.document;
    }
    Frame& frame = frames_.back();
    if (frame.container->is_array()) {
      frame.container->push_back(std::move(value));
      return &frame.container->back();
    }
    if (frame.repeated) {
      // An object or array has only been opened and has no content yet.
      result_.duplicates.push_back({path(), value.is_object()  ? "{...}"
                                            : value.is_array() ? "[...]"
                                                               : show_value(value)});
    }
    // Appends directly: the object's own insert would search all its keys.
    std::vector<Json::object_t::value_type>& members = frame.container->get_ref<Json::object_t&>();
    if (!frame.repeated) return &members.emplace_back(frame.key, std::move(value)).second;
    Json& slot = members[frame.seen.at(frame.key)].second;
    const bool merge = slot.is_object() && value.is_object();
    if (!merge) slot = std::move(value);
    return &slot;
  }

  // Path of the next value in the innermost object.
  std::string path() const {
    std::string result;
    for (const Frame& frame : frames_) {
      if (frame.container->is_array()) {
        result += fmt::format("[{}]", frame.container->size() - 1);
      } else {
        result += (result.empty() ? "" : ".") + frame.key;
      }
    }
    return result;
  }

  std::string_view text_;
  JsonText result_;
  std::vector<Frame> frames_;
};

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

JsonText read_json(std::string_view text) {
  TreeBuilder builder(text);
  read_json_events(text, builder);
  return builder.take();
}

std::string show_value(const Json& value) {
  constexpr size_t max_chars = 80;
  // Nested values are abbreviated: a message has one line.
  if (value.is_object()) return value.empty() ? "{}" : "{...}";
  if (value.is_array() && std::any_of(value.begin(), value.end(), [](const Json& v) { return v.is_structured(); })) {
    return "[...]";
  }
  return printable(dump(value), max_chars);
}

}  // namespace gptrain::config
