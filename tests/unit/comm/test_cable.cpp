// A connection that several streams share.
#include <algorithm>
#include <memory>
#include <string>
#include <sys/socket.h>
#include <vector>

#include "catch.h"
#include "comm/cable.h"

using namespace gptrain;

namespace {

constexpr int first = 1, second = 2;

struct Pair {
  Pair() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    here = std::make_unique<Cable>(Socket(ends[0]));
    there = std::make_unique<Cable>(Socket(ends[1]));
    for (const int stream : {first, second}) {
      here->open(stream, [this] { ++woken; });
      there->open(stream, [this] { ++woken; });
    }
  }
  std::unique_ptr<Cable> here, there;
  int woken = 0;
};

int64_t send(Cable& cable, int stream, const std::string& text) {
  const iovec part{const_cast<char*>(text.data()), text.size()};
  return cable.send(stream, {&part, 1});
}

// Returns the text that can be received at once; "gone" at the end.
std::string receive(Cable& cable, int stream, size_t most = 1 << 16) {
  std::string text(most, ' ');
  const iovec part{text.data(), text.size()};
  const int64_t bytes = cable.receive(stream, {&part, 1});
  if (bytes == Cable::gone) return "gone";
  text.resize(static_cast<size_t>(bytes));
  return text;
}

}  // namespace

TEST_CASE("streams of a connection do not wait for each other") {
  Pair pair;
  std::string sent;
  for (int turns = 0; turns < 10'000 && std::ssize(sent) < Cable::window_bytes; ++turns) {
    const std::string piece(50'000, static_cast<char>('a' + turns % 26));
    const int64_t bytes = send(*pair.here, first, piece);
    sent += piece.substr(0, static_cast<size_t>(bytes));
    // Nobody asks for the first stream. The other one's reader makes room in the connection.
    REQUIRE(receive(*pair.there, second).empty());
  }
  REQUIRE(std::ssize(sent) == Cable::window_bytes);
  REQUIRE(send(*pair.here, first, "more") == 0);
  REQUIRE(pair.woken > 0);
  REQUIRE(send(*pair.here, second, "through") == 7);
  REQUIRE(receive(*pair.there, second) == "through");
  std::string received;
  for (std::string piece; !(piece = receive(*pair.there, first, 40'000)).empty();) received += piece;
  REQUIRE((received == sent));
  REQUIRE(send(*pair.here, first, "more") == 4);
  REQUIRE(pair.here->is_sent(first));
  REQUIRE(receive(*pair.there, first) == "more");
}

TEST_CASE("a stream ends on both sides, and leaves the others alone") {
  Pair pair;
  REQUIRE(send(*pair.here, first, "last words") == 10);
  pair.here->close(first);
  REQUIRE(receive(*pair.here, first) == "gone");
  REQUIRE(receive(*pair.there, second).empty());
  REQUIRE(receive(*pair.there, first) == "last words");
  REQUIRE(receive(*pair.there, first) == "gone");
  REQUIRE(send(*pair.there, first, "x") == Cable::gone);
  REQUIRE(send(*pair.there, second, "x") == 1);
  REQUIRE(receive(*pair.here, second) == "x");
}

TEST_CASE("bytes that a peer has sent before it is gone arrive") {
  Pair pair;
  REQUIRE(send(*pair.there, first, "one") == 3);
  REQUIRE(send(*pair.there, second, "two") == 3);
  pair.there.reset();
  REQUIRE(send(*pair.here, second, "x") == Cable::gone);
  REQUIRE(receive(*pair.here, second) == "two");
  REQUIRE(receive(*pair.here, second) == "gone");
  REQUIRE(receive(*pair.here, first) == "one");
  REQUIRE(receive(*pair.here, first) == "gone");
  REQUIRE(pair.woken > 0);
}
