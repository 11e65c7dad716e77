#include "comm/handshake.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sodium.h>
#include <sys/stat.h>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "comm/frames.h"

namespace gptrain::inline comm {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

constexpr size_t least_secret_chars = 16;
constexpr size_t most_callers = 256;  // callers that have not proved the secret yet
constexpr size_t accepted_at_a_time = 64;
constexpr auto time_to_prove = 10s;  // limit for a caller; a rank that is stopped for longer calls again
constexpr auto frame_time = 100ms;   // limit for a frame that fits the connection's buffer

// The text that each side authenticates with the secret. The nonces keep a proof from being used twice, and `role` from
// being sent back to its author.
std::string statement_of(std::string_view role, std::string_view purpose, std::string_view caller_nonce,
                         std::string_view listener_nonce) {
  return fmt::format("gptrain 1\n{}\n{}\n{}\n{}", role, purpose, caller_nonce, listener_nonce);
}

bool start_sodium() {
  static const bool started = sodium_init() >= 0;
  return started;
}

template <size_t N>
std::string to_hex(const std::array<unsigned char, N>& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string read_secret_file(const std::string& path) {
  struct stat status {};
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  std::FILE* const file = descriptor < 0 ? nullptr : fdopen(descriptor, "r");
  const auto refuse = [&](const char* why) {
    if (file != nullptr) std::fclose(file);
    throw Error(ExitCode::usage, "GPTRAIN_SECRET_FILE={}: {}", path, why);
  };
  if (file == nullptr || fstat(fileno(file), &status) != 0) refuse("cannot be read");
  if (!S_ISREG(status.st_mode)) refuse("is no file");
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) refuse("others may use it; give it the mode 600");
  std::array<char, 4096> text{};
  const size_t length = std::fread(text.data(), 1, text.size(), file);
  std::fclose(file);
  std::string secret(text.data(), length);
  while (!secret.empty() && secret.back() == '\n') secret.pop_back();
  return secret;
}

}  // namespace

std::string Secret::proof(std::string_view statement) const {
  if (!start_sodium())
    throw Error(ExitCode::machine, "libsodium cannot be started, and ranks need it to prove the secret");
  crypto_auth_hmacsha256_state state;
  std::array<unsigned char, crypto_auth_hmacsha256_BYTES> digest{};
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char*>(key_.data()), key_.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(statement.data()), statement.size());
  crypto_auth_hmacsha256_final(&state, digest.data());
  return to_hex(digest);
}

bool Secret::proves(std::string_view proof, std::string_view statement) const {
  const std::string expected = this->proof(statement);
  return proof.size() == expected.size() && sodium_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

Secret find_secret(const Environment& environment) {
  const char* const text = environment("GPTRAIN_SECRET");
  const char* const file = environment("GPTRAIN_SECRET_FILE");
  const bool has_text = text != nullptr && *text != '\0';
  if (!has_text && (file == nullptr || *file == '\0')) return {};
  std::string secret = has_text ? std::string(text) : read_secret_file(file);
  if (secret.size() < least_secret_chars)
    throw Error(ExitCode::usage, "{}: must have at least {} characters, such as 32 random bytes in hexadecimal",
                has_text ? "GPTRAIN_SECRET" : "GPTRAIN_SECRET_FILE", least_secret_chars);
  return Secret(std::move(secret));
}

Secret find_secret() {
  return find_secret([](const char* name) -> const char* { return std::getenv(name); });
}

std::string draw_secret() {
  if (!start_sodium())
    throw Error(ExitCode::machine, "libsodium cannot be started, and ranks need it to prove the secret");
  std::array<unsigned char, 32> bytes{};
  randombytes_buf(bytes.data(), bytes.size());
  return to_hex(bytes);
}

CallEnd prove_to(FrameChannel& channel, const Secret& secret, std::string_view purpose, Clock::time_point deadline) {
  const std::string nonce = draw_secret();
  if (!channel.send(json_text(Json{{"kind", "greeting"}, {"nonce", nonce}}), deadline)) return CallEnd::closed;
  const auto text = channel.receive(deadline);
  if (!text) {
    const bool closed = !channel.open();
    channel.close();
    return closed ? CallEnd::closed : CallEnd::stranger;
  }
  const Json challenge = parse_json_or_discard(*text);
  const std::string theirs = text_member(challenge, "nonce");
  if (!secret.proves(text_member(challenge, "proof"), statement_of("listener", purpose, nonce, theirs))) {
    channel.close();
    return CallEnd::stranger;
  }
  const Json proof{{"kind", "proof"}, {"proof", secret.proof(statement_of("caller", purpose, nonce, theirs))}};
  return channel.send(json_text(proof), deadline) ? CallEnd::proven : CallEnd::closed;
}

SecureListener::SecureListener(Socket listener, Secret secret, std::string purpose)
    : listener_(std::move(listener)), secret_(std::move(secret)), purpose_(std::move(purpose)) {}

void SecureListener::open(Secret secret, std::string purpose) {
  secret_ = std::move(secret);
  purpose_ = std::move(purpose);
}

void SecureListener::accept_all() {
  for (size_t i = 0; i < accepted_at_a_time; ++i) {
    auto accepted = accept_from(listener_, Clock::now());
    if (!accepted) return;
    if (callers_.size() == most_callers) {
      drop(callers_.front());
      callers_.pop_front();
    }
    callers_.push_back({FrameChannel(std::move(accepted->socket), most_stranger_bytes),
                        accepted->address,
                        Clock::now() + time_to_prove,
                        {}});
  }
}

void SecureListener::drop(Caller& caller) {
  caller.channel.close();
  ++num_turned_away_;
}

bool SecureListener::answer(Caller& caller, const std::string& greeting) {
  const std::string theirs = text_member(parse_json_or_discard(greeting), "nonce");
  const std::string nonce = draw_secret();
  if (theirs.size() != nonce.size()) return false;
  caller.statement = statement_of("caller", purpose_, theirs, nonce);
  const Json challenge{{"kind", "challenge"},
                       {"nonce", nonce},
                       {"proof", secret_.proof(statement_of("listener", purpose_, theirs, nonce))}};
  return caller.channel.send(json_text(challenge), Clock::now() + frame_time);
}

bool SecureListener::advance(Caller& caller) {
  caller.channel.read_one_frame();
  while (const auto frame = caller.channel.next_frame()) {
    bool is_right = true;
    if (caller.statement.empty()) {
      is_right = answer(caller, *frame);
    } else if (!caller.proven) {
      is_right = caller.proven = secret_.proves(text_member(parse_json_or_discard(*frame), "proof"), caller.statement);
      if (is_right) caller.channel.take_frames_up_to(max_frame_bytes);
    } else {
      admitted_.push_back({std::move(caller.channel), caller.address, *frame});
      return false;
    }
    if (!is_right) {
      drop(caller);
      return false;
    }
    caller.channel.read_one_frame();
  }
  if (caller.channel.open() && Clock::now() < caller.deadline) return true;
  drop(caller);
  return false;
}

void SecureListener::serve() {
  accept_all();
  std::erase_if(callers_, [this](Caller& caller) { return !advance(caller); });
}

void SecureListener::wait(Clock::time_point deadline) const {
  std::vector<pollfd> waiting{{listener_.descriptor(), POLLIN, 0}};
  for (const Caller& caller : callers_) {
    waiting.push_back({caller.channel.socket().descriptor(), POLLIN, 0});
    deadline = std::min(deadline, caller.deadline);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  poll(waiting.data(), waiting.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000)));
}

std::optional<SecureListener::Admitted> SecureListener::admit(Clock::time_point deadline) {
  for (;;) {
    serve();
    if (!admitted_.empty()) {
      Admitted admitted = std::move(admitted_.front());
      admitted_.pop_front();
      return admitted;
    }
    if (Clock::now() >= deadline) return std::nullopt;
    wait(deadline);
  }
}

}  // namespace gptrain::comm
