// Rows of whole sequences, and of sequences that several ranks share.
#include <vector>

#include "base/token_rows.h"
#include "catch.h"

using namespace gptrain;

TEST_CASE("rows of whole sequences are their tokens") {
  const TokenRows rows = TokenRows::whole(5);
  CHECK(rows.is_sound());
  CHECK(rows.end() == 5);
  for (int64_t row = 0; row < 15; ++row) {
    CHECK(rows.sequence(row) == row / 5);
    CHECK(rows.token(row) == row % 5);
  }
  CHECK(rows.row(4) == 4);
  CHECK(rows.row(5) == -1);
  CHECK(rows.divides(10));
  CHECK_FALSE(rows.divides(11));
  CHECK_FALSE(TokenRows{}.divides(0));
}

TEST_CASE("ranks that share sequences have each token once") {
  // Each rank has an early and a late run of the 2 * ranks runs of a sequence.
  constexpr int64_t ranks = 3, run = 4;
  std::vector<int64_t> ranks_of_tokens(2 * ranks * run);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const TokenRows rows{
        .length = 2 * run, .first_length = run, .first = rank * run, .second = (2 * ranks - 1 - rank) * run};
    CHECK(rows.is_sound());
    CHECK(rows.end() == (2 * ranks - rank) * run);
    for (int64_t row = 0; row < rows.length; ++row) {
      const int64_t token = rows.token(rows.length + row);
      CHECK(rows.row(token) == row);
      ++ranks_of_tokens.at(static_cast<size_t>(token));
    }
    for (int64_t token = 0; token < rows.first; ++token) CHECK(rows.row(token) == -1);
    CHECK(rows.row(rows.end()) == -1);
  }
  CHECK(ranks_of_tokens == std::vector<int64_t>(2 * ranks * run, 1));
}

TEST_CASE("runs of tokens do not overlap, and begin within their sequence") {
  CHECK_FALSE(TokenRows{}.is_sound());
  CHECK_FALSE(TokenRows{.length = 4, .first_length = 5}.is_sound());
  CHECK_FALSE(TokenRows{.length = 4, .first_length = 4, .first = -1}.is_sound());
  CHECK_FALSE(TokenRows{.length = 4, .first_length = 2, .first = 3, .second = 4}.is_sound());
  CHECK(TokenRows{.length = 4, .first_length = 2, .first = 3, .second = 5}.is_sound());
  CHECK(TokenRows{.length = 4, .first_length = 2, .first = 3, .second = 1}.is_sound());
}
