// Philox against published test vectors.
#include <array>
#include <cstdint>

#include "base/philox.h"
#include "catch.h"

using namespace gptrain;

TEST_CASE("Philox4x32-10 gives the published answers") {
  CHECK(philox({0, 0}, {0, 0, 0, 0}) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t ones = 0xffffffff;
  CHECK(philox({ones, ones}, {ones, ones, ones, ones}) ==
        std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}
