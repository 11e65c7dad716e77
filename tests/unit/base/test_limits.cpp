// Amounts that saturate, texts that fit a message, JSON that is not too deep.
#include <string>

#include "base/amount.h"
#include "base/json.h"
#include "base/printable.h"
#include "catch.h"

using namespace gptrain;

TEST_CASE("an amount that is too large stays so") {
  CHECK((Amount(3) * 4 + 5).value() == 17);
  const Amount large = int64_t{1} << 62;
  CHECK((large + large).too_large());
  CHECK((large * 2).too_large());
  CHECK(((large * large) * 1 + 0).too_large());
  CHECK((large * large * 0).value() == 0);
  CHECK(Amount(-7).value() == 0);
  CHECK(Amount(2) < Amount(3));
  static_assert((Amount(Amount::most) + 1).too_large());
}

TEST_CASE("text within a message has one line, no controls and an end") {
  CHECK(printable("plain \xc3\xa9") == "plain \xc3\xa9");
  CHECK(printable(std::string("a\0b\x1b\n\t\x7f", 7)) == "a\\x00b\\x1b\\n\\t\\x7f");
  CHECK(printable(std::string(200, 'x')) == std::string(200, 'x'));
  CHECK(printable(std::string(201, 'x')) == std::string(200, 'x') + "...");
  CHECK(printable("a\xc3\xa9", 2) == "a...");
}

TEST_CASE("JSON has 64 levels at most, wherever brackets stand") {
  const auto nested = [](int levels) {
    return std::string(static_cast<size_t>(levels), '[') + std::string(static_cast<size_t>(levels), ']');
  };
  CHECK_NOTHROW(parse_json(nested(64)));
  CHECK_THROWS_AS(parse_json(nested(65)), nlohmann::json::exception);
  CHECK(parse_json_or_discard(nested(65)).is_discarded());
  CHECK_FALSE(parse_json_or_discard(nested(64)).is_discarded());
  CHECK_FALSE(parse_json_or_discard("[" + nested(63) + "," + nested(63) + "]").is_discarded());
  CHECK_FALSE(parse_json_or_discard("\"" + nested(99) + "\"").is_discarded());
  CHECK_FALSE(parse_json_or_discard("\"\\\"" + nested(99) + "\"").is_discarded());
  CHECK(parse_json_or_discard("\"\\\\\"" + nested(99)).is_discarded());
  std::string keys;
  parse_json(R"({"a": {"b": 1}, "c": [{"d": 2}]})", [&](const std::string& key, int) { keys += key; });
  CHECK(keys == "ac");
  keys.clear();
  parse_json(R"({"a": {"b": {"x": 1}}, "c": {"d": 2}})",
             [&](const std::string& key, int depth) { keys += key + std::to_string(depth); }, 2);
  CHECK(keys == "a1b2c1d2");
}
