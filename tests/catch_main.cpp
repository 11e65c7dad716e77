#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif
#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "skip.h"

namespace {

std::set<std::string, std::less<>> skipped;

}  // namespace

namespace gptrain::testing {

void skip_case(std::string_view why) {
  if (const auto [reason, first] = skipped.emplace(why); first) std::printf("skipped: %s\n", reason->c_str());
}

}  // namespace gptrain::testing

int main(int argc, char** argv) {
  constexpr int exit_skipped = 77;
  const int failed = Catch::Session().run(argc, argv);
  return failed == 0 && !skipped.empty() ? exit_skipped : failed;
}
