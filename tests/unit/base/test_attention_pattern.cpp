#include <algorithm>
#include <random>

#include "base/attention_pattern.h"
#include "catch.h"

namespace gptrain {
namespace {

int64_t counted_pairs(const AttentionPattern& pattern, int64_t tokens, int64_t heads) {
  int64_t count = 0;
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t query = 0; query < tokens; ++query)
      for (int64_t key = 0; key < tokens; ++key) count += pattern.sees(head, query, key) ? 1 : 0;
  return count;
}

TEST_CASE("attention patterns: pairs are a brute-force count in 200 random shapes") {
  std::mt19937 random(7);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint32_t>(end)); };
  for (int i = 0; i < 200; ++i) {
    AttentionPattern pattern{.kind = static_cast<AttentionKind>(i % 5)};
    if (pattern.kind != AttentionKind::dense) pattern.width = 1 + below(40);
    if (pattern.kind == AttentionKind::fixed) {
      pattern.columns = 1 + below(pattern.width);
      pattern.column_sets = 1 + below(std::min<int64_t>(pattern.width / pattern.columns, 3));
    }
    if (i % 2 == 0) pattern.global = 1 + below(60);
    const int64_t tokens = 1 + below(150), heads = pattern.column_sets * (1 + below(2));
    INFO(attention_pattern_word(pattern) << " T=" << tokens << " H=" << heads);
    REQUIRE(pattern.pairs(tokens, heads) == counted_pairs(pattern, tokens, heads));
  }
}

TEST_CASE("attention patterns: heads that see all earlier tokens count as in dense attention, by whatever pattern") {
  for (const char* const word :
       {"dense", "dense+global:7", "band:90", "band:20+global:71", "strided:1", "strided:89", "columns:1",
        "columns:50+global:89", "fixed:20,20", "fixed:90,1", "fixed:44,20/2+global:89"}) {
    INFO(word);
    CHECK(parse_attention_pattern(word).value_or(AttentionPattern{}).twice_counted_pairs(90, 2) == wide(2 * 90 * 90));
  }
  // With two sets of columns, only the heads of the first set see all earlier tokens.
  const auto sets = parse_attention_pattern("fixed:88,44/2+global:44").value_or(AttentionPattern{});
  CHECK(
      sets.twice_counted_pairs(90, 2) ==
      wide(90 * 90 +
           2 * counted_pairs({.kind = AttentionKind::fixed, .width = 88, .columns = 44, .column_sets = 2, .global = 44},
                             90, 2) -
           90 * 91));
}

TEST_CASE("attention patterns: words are read as they are written") {
  for (const char* const word : {"dense", "band:256", "strided:64", "columns:128", "fixed:128,16", "fixed:128,16/4",
                                 "dense+global:1", "fixed:8,8+global:3"}) {
    const auto pattern = parse_attention_pattern(word);
    REQUIRE(pattern.has_value());
    CHECK(attention_pattern_word(*pattern) == word);
  }
  const AttentionPattern fixed = parse_attention_pattern("fixed:128,16/4+global:9").value_or(AttentionPattern{});
  CHECK(fixed ==
        AttentionPattern{.kind = AttentionKind::fixed, .width = 128, .columns = 16, .column_sets = 4, .global = 9});
  for (const char* const word : {"",
                                 "dens",
                                 "dense:1",
                                 "band",
                                 "band:",
                                 "band:0",
                                 "band:-1",
                                 "band:05",
                                 "band:1x",
                                 "band:16777217",
                                 "strided:2,1",
                                 "fixed:8",
                                 "fixed:8,9",
                                 "fixed:8,3/3",
                                 "fixed:8,0",
                                 "fixed:8,1/0",
                                 "band:4+global:0",
                                 "band:4+global",
                                 "band:99999999999999999999",
                                 "dense+global:2+global:2"})
    CHECK_FALSE(parse_attention_pattern(word).has_value());
  CHECK(window_pattern(0) == AttentionPattern{});
  CHECK(attention_pattern_word(window_pattern(5)) == "band:5");
}

TEST_CASE("attention patterns: heads of a fixed pattern have columns of their own") {
  const AttentionPattern pattern{.kind = AttentionKind::fixed, .width = 6, .columns = 2, .column_sets = 2};
  CHECK(pattern.sees(0, 6, 5));
  CHECK(pattern.sees(0, 6, 4));
  CHECK_FALSE(pattern.sees(0, 6, 3));
  CHECK(pattern.sees(1, 6, 3));
  CHECK(pattern.sees(3, 6, 2));
  CHECK_FALSE(pattern.sees(1, 6, 4));
}

}  // namespace
}  // namespace gptrain
