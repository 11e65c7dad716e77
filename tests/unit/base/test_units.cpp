// Numbers as people read them.
#include <limits>

#include "base/units.h"
#include "catch.h"

using namespace gptrain;

TEST_CASE("numbers for people") {
  CHECK(format_count(57123) == "57.1k");
  CHECK(format_count(999.7) == "1.00k");
  CHECK(format_count(12) == "12");
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1.9 * 1024 * 1024 * 1024) == "1.9 GiB");
  CHECK(format_duration(0.412) == "412 ms");
  CHECK(format_duration(59.96) == "1m");
  CHECK(format_duration(3600 * 5.2) == "5h 12m");
  CHECK(format_duration(86400 * 3 + 3600 * 4) == "3d 4h");
  CHECK(format_duration(86400 * 999'999.0) == "999999d 0h");
  CHECK(format_duration(1e18) == "1.16e+13 days");
  CHECK(format_duration(1e300) == "1.16e+295 days");
  CHECK(format_duration(std::numeric_limits<double>::infinity()) == "inf days");
  CHECK(format_count(9e23) == "900Z");
  CHECK(format_count(1e30) == "1.00e+30");
  CHECK(format_grouped(124439808) == "124,439,808");
  CHECK(format_grouped(-1234) == "-1,234");
  CHECK(format_grouped(999) == "999");
  CHECK(format_counted(1, "rank") == "1 rank");
  CHECK(format_counted(1200, "call") == "1,200 calls");
  CHECK(format_counted(1, "micro-batch") == "1 micro-batch");
  CHECK(format_counted(2, "micro-batch") == "2 micro-batches");
}
