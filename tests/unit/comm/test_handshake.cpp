// Proofs of a shared secret, and the gate that admits callers with a valid proof.
#include <string>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "catch.h"
#include "comm/frames.h"
#include "comm/handshake.h"
#include "comm/rendezvous.h"

namespace test_handshake {

using namespace gptrain;
using namespace std::chrono_literals;

namespace {

constexpr const char* purpose = "a test";

FrameChannel call(const SecureListener& secure_listener) {
  auto socket = connect_to("127.0.0.1", port_of(secure_listener.listener()), Clock::now() + 5s);
  REQUIRE(socket);
  return FrameChannel(std::move(*socket));
}

CallEnd call_as(const SecureListener& secure_listener, const std::string& secret, const char* for_what,
                const std::string& text) {
  FrameChannel channel = call(secure_listener);
  const CallEnd end = prove_to(channel, Secret(secret), for_what, Clock::now() + 5s);
  if (end == CallEnd::proven) channel.send(text, Clock::now() + 5s);
  // Gives the gate time to read before it is destroyed.
  std::this_thread::sleep_for(50ms);
  return end;
}

}  // namespace

TEST_CASE("a secret or an interface that cannot be used is a wrong setting") {
  const auto code_of = [](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::finished;
  };
  const auto secret_in = [](std::string_view variable, const char* value) {
    return [=] { find_secret([=](const char* name) { return name == variable ? value : nullptr; }); };
  };
  CHECK(code_of(secret_in("GPTRAIN_SECRET", "fifteen letters")) == ExitCode::usage);
  CHECK(code_of(secret_in("GPTRAIN_SECRET", "sixteen letters!")) == ExitCode::finished);
  CHECK(code_of(secret_in("GPTRAIN_SECRET_FILE", "/nowhere/secret")) == ExitCode::usage);
  CHECK(code_of([] { listening_address({}, {.secret = {}, .interface = "no-such-interface"}); }) == ExitCode::usage);
}

TEST_CASE("a proof is HMAC-SHA256 of the statement") {
  // RFC 4231, test case 2.
  const Secret key("Jefe");
  const std::string known = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
  CHECK(key.proof("what do ya want for nothing?") == known);
  CHECK(key.proves(known, "what do ya want for nothing?"));
  CHECK_FALSE(key.proves(known.substr(1), "what do ya want for nothing?"));
  CHECK_FALSE(key.proves(known, "what do you want for nothing?"));
  CHECK_FALSE(Secret("jefe").proves(known, "what do ya want for nothing?"));
  CHECK(draw_secret().size() == 64);
  CHECK(draw_secret() != draw_secret());
}

TEST_CASE("who knows the secret is let in, with what he says") {
  SecureListener secure_listener(listen_on(0, "127.0.0.1"), Secret("a secret"), purpose);
  std::thread caller([&] { call_as(secure_listener, "a secret", purpose, "hello"); });
  const auto guest = secure_listener.admit(Clock::now() + 5s);
  caller.join();
  REQUIRE(guest);
  CHECK(guest->text == "hello");
  CHECK(guest->address == "127.0.0.1");
  CHECK(secure_listener.num_turned_away() == 0);
}

TEST_CASE("another secret, another purpose or none of it is turned away, by both sides") {
  SecureListener secure_listener(listen_on(0, "127.0.0.1"), Secret("a secret"), purpose);
  for (const auto& [secret, for_what] :
       {std::pair{"another secret", purpose}, {"", purpose}, {"a secret", "a toast"}}) {
    CallEnd end = CallEnd::proven;
    std::thread caller(
        [&, &secret = secret, &for_what = for_what] { end = call_as(secure_listener, secret, for_what, "hello"); });
    CHECK_FALSE(secure_listener.admit(Clock::now() + 300ms));
    caller.join();
    CHECK(end == CallEnd::stranger);
  }
  CHECK(secure_listener.num_turned_away() == 3);
}

TEST_CASE("a proof that somebody overheard is of no use") {
  SecureListener secure_listener(listen_on(0, "127.0.0.1"), Secret("a secret"), purpose);
  // Repeats the caller's frames of one conversation in another.
  const std::string nonce(64, '1');
  const auto ask = [&](const std::string& proof) {
    FrameChannel channel = call(secure_listener);
    channel.send(json_text(nlohmann::json{{"kind", "greeting"}, {"nonce", nonce}}), Clock::now() + 1s);
    secure_listener.admit(Clock::now() + 100ms);
    const auto challenge = channel.receive(Clock::now() + 1s);
    REQUIRE(challenge);
    channel.send(json_text(nlohmann::json{{"kind", "proof"}, {"proof", proof}}), Clock::now() + 1s);
    channel.send("hello", Clock::now() + 1s);
    CHECK_FALSE(secure_listener.admit(Clock::now() + 100ms));
    return text_member(parse_json(*challenge), "proof");
  };
  const std::string of_listener = ask(std::string(64, '0'));
  CHECK(ask(of_listener) != of_listener);
  CHECK(secure_listener.num_turned_away() == 2);
}

TEST_CASE("silent callers and long ones cost nothing but themselves") {
  SecureListener secure_listener(listen_on(0, "127.0.0.1"), Secret("a secret"), purpose);
  std::vector<FrameChannel> silent;
  for (int i = 0; i < 400; ++i) {
    silent.push_back(call(secure_listener));
    if (i % 3 == 1) silent.back().send(std::string(4097, 'x'), Clock::now() + 1s);
    if (i % 3 == 2) silent.back().send(std::string(300, '['), Clock::now() + 1s);
    secure_listener.serve();
  }
  std::thread caller([&] { call_as(secure_listener, "a secret", purpose, "hello"); });
  const auto guest = secure_listener.admit(Clock::now() + 5s);
  caller.join();
  REQUIRE(guest);
  CHECK(guest->text == "hello");
  CHECK(secure_listener.num_turned_away() >= 260);
}

TEST_CASE("members of a frame are what they are, or nothing") {
  const auto json = parse_json(R"({"a": "text", "b": 7, "c": 18446744073709551615, "d": 1.5, "e": -1})");
  CHECK(text_member(json, "a") == "text");
  CHECK(text_member(json, "b").empty());
  CHECK(text_member(parse_json("[]"), "a").empty());
  CHECK(number_member(json, "b", 0, 9) == 7);
  for (const char* name : {"a", "c", "d", "e", "f"}) CHECK_FALSE(number_member(json, name, 0, 9));
  CHECK_FALSE(number_member(json, "b", 8, 9));
}

}  // namespace test_handshake
