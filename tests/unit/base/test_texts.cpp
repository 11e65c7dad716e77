// Numbers in reports for people.
#include "base/text_parts.h"
#include "catch.h"

namespace gptrain {
namespace {

TEST_CASE("A goodput below one has as many digits as show it") {
  CHECK(goodput_text(1) == "100.0%");
  CHECK(goodput_text(0.988) == "98.8%");
  CHECK(goodput_text(0.9996) == "99.96%");
  CHECK(goodput_text(0.99996) == "99.996%");
  CHECK(goodput_text(1 - 1e-12) == ">99.9999%");
}

TEST_CASE("Rates of FLOPs below one TFLOP/s are in GFLOP/s") {
  CHECK(flops_rate_text(312e12, 0) == "312 TFLOP/s");
  CHECK(flops_rate_text(1.25e12, 3) == "1.250 TFLOP/s");
  CHECK(flops_rate_text(84.2e9, 3) == "84.2 GFLOP/s");
}

}  // namespace
}  // namespace gptrain
