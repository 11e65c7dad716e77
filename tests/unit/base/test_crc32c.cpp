#include <string>
#include <vector>

#include "base/crc32c.h"
#include "catch.h"

using namespace gptrain;

TEST_CASE("CRC-32C of the test vectors of RFC 3720", "[crc32c]") {
  const std::vector<unsigned char> zeros(32, 0x00);
  const std::vector<unsigned char> ones(32, 0xFF);
  std::vector<unsigned char> rising;
  for (int i = 0; i < 32; ++i) rising.push_back(static_cast<unsigned char>(i));
  const std::string digits = "123456789";
  for (const auto function : {&crc32c, &crc32c_table}) {
    CHECK(function(zeros.data(), zeros.size(), 0) == 0x8A9136AAU);
    CHECK(function(ones.data(), ones.size(), 0) == 0x62A8AB43U);
    CHECK(function(rising.data(), rising.size(), 0) == 0x46DD794EU);
    CHECK(function(digits.data(), digits.size(), 0) == 0xE3069283U);
    CHECK(function(nullptr, 0, 0) == 0U);
  }
}

TEST_CASE("CRC-32C: processor and tables agree at every length and alignment, in one piece or two", "[crc32c]") {
  std::vector<unsigned char> bytes;
  uint32_t state = 1;
  for (int i = 0; i < 200; ++i) {
    state = state * 1664525U + 1013904223U;
    bytes.push_back(static_cast<unsigned char>(state >> 24));
  }
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t length = 0; length < 150; ++length) {
      const uint32_t expected = crc32c_table(bytes.data() + begin, length);
      REQUIRE(crc32c(bytes.data() + begin, length) == expected);
      const size_t cut = length * 3 / 7;
      REQUIRE(crc32c(bytes.data() + begin + cut, length - cut, crc32c(bytes.data() + begin, cut)) == expected);
    }
  }
}
