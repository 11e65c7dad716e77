// The lanes of one rank, and their event logs, of real steps and plans.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "comm/lane.h"
#include "comm/plan.h"
#include "unit/comm/ranks.h"

namespace test_lane {

using namespace gptrain;

namespace {

// A group of two that records its calls. While it is held, collectives do not return.
class NotedGroup final : public Communicator {
 public:
  explicit NotedGroup(std::vector<std::string>& notes) : notes_(notes) {}

  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    {
      const std::lock_guard lock(mutex_);
      held_ = false;
    }
    changed_.notify_all();
  }
  void fail_at(int64_t count) { failing_count_ = count; }
  int num_begun() const { return num_begun_; }

  int rank() const override { return 0; }
  int size() const override { return 2; }
  void all_reduce(void*, int64_t count, DType, ReduceOp) override { note("all_reduce", count); }
  void reduce_scatter(const void*, void*, int64_t count, DType, ReduceOp) override { note("reduce_scatter", count); }
  void all_gather(const void*, void*, int64_t count, DType) override { note("all_gather", count); }
  void broadcast(void*, int64_t count, DType, int root) override {
    note("broadcast from " + std::to_string(root), count);
  }
  void all_to_all(const void*, void*, int64_t count, DType) override { note("all_to_all", count); }
  void all_to_all_v(const void*, std::span<const PeerPart> sent, void*, std::span<const PeerPart> received,
                    DType) override {
    note("all_to_all_v " + std::to_string(sent[1].count), received[1].count);
  }
  void send(const void*, int64_t count, DType, int peer) override { note("send to " + std::to_string(peer), count); }
  void receive(void*, int64_t count, DType, int peer) override { note("receive from " + std::to_string(peer), count); }
  void group_start() override { note("start", 0); }
  void group_end() override { note("end", 0); }
  void barrier() override { note("barrier", 0); }
  void synchronize() override {}
  void abort() override {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    changed_.notify_all();
  }

 private:
  void note(const std::string& what, int64_t count) {
    ++num_begun_;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !held_ || given_up_; });
    if (given_up_) throw PeerGone("given up");
    notes_.push_back(what + " " + std::to_string(count));
    if (count == failing_count_) throw std::runtime_error("failed at " + std::to_string(count));
  }

  std::vector<std::string>& notes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, given_up_ = false;
  std::optional<int64_t> failing_count_;
  std::atomic<int> num_begun_{0};
};

void wait_for(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

// One stage of a pipeline that passes numbers on and back, one forward and one backward in turn (1F1B). Sends are
// waited for only at the end.
void run_stage(Communicator& forward_group, Communicator& backward_group, Lane& forward, Lane& backward) {
  constexpr int rounds = 20;
  const int stage = forward_group.rank(), last = forward_group.size() - 1;
  std::vector<int64_t> outputs(rounds), gradients(rounds);
  const auto expect = [](bool condition) {
    if (!condition) throw Error(ExitCode::device, "a wrong number");
  };
  const auto run_forward = [&](int round) {
    int64_t& value = outputs[static_cast<size_t>(round)];
    value = 100 * round;
    if (stage > 0) forward.wait(forward.receive(&forward_group, &value, 1, DType::i64, stage - 1));
    expect(value == 100 * round + stage);
    ++value;
    if (stage < last) forward.send(&forward_group, &value, 1, DType::i64, stage + 1);
  };
  const auto run_backward = [&](int round) {
    int64_t& value = gradients[static_cast<size_t>(round)];
    value = -100 * round;
    if (stage < last) backward.wait(backward.receive(&backward_group, &value, 1, DType::i64, stage + 1));
    expect(value == -100 * round - (last - stage));
    --value;
    if (stage > 0) backward.send(&backward_group, &value, 1, DType::i64, stage - 1);
  };
  const int ahead = last - stage;
  for (int round = 0; round < ahead; ++round) run_forward(round);
  for (int round = 0; round < rounds; ++round) {
    if (round + ahead < rounds) run_forward(round + ahead);
    run_backward(round);
  }
  forward.wait_all();
  backward.wait_all();
}

// Returns the first message of a stage that failed; empty if none did.
std::string run_stages(int size, bool two_lanes) {
  auto forward_groups = make_local_group(size), backward_groups = make_local_group(size);
  for (const std::string& message : run_rank_threads(size, [&](int rank) {
         const auto index = static_cast<size_t>(rank);
         const auto forward_group = std::move(forward_groups[index]);
         const auto backward_group = std::move(backward_groups[index]);
         const auto failure = std::make_shared<LaneFailure>();
         Lane forward("forward", {.threaded = true, .failure = failure});
         if (!two_lanes) return run_stage(*forward_group, *forward_group, forward, forward);
         Lane backward("backward", {.threaded = true, .failure = failure});
         run_stage(*forward_group, *backward_group, forward, backward);
       })) {
    if (!message.empty()) return message;
  }
  return "";
}

}  // namespace

TEST_CASE("collectives of all groups run in the order of issue") {
  for (const bool threaded : {false, true}) {
    std::vector<std::string> notes;
    NotedGroup a(notes), b(notes);
    Lane lane("a lane", {.threaded = threaded});
    lane.all_reduce(&a, nullptr, 1, DType::f32);
    lane.reduce_scatter(&b, nullptr, nullptr, 2, DType::f32);
    lane.all_gather(&a, nullptr, nullptr, 3, DType::f32);
    lane.wait(lane.broadcast(&b, nullptr, 4, DType::f32, 1));
    CHECK(notes == std::vector<std::string>{"all_reduce 1", "reduce_scatter 2", "all_gather 3", "broadcast from 1 4"});
  }
}

TEST_CASE("a lane has every operation, and runs transfers together") {
  const std::vector<PeerPart> sent = {{0, 1}, {1, 2}}, received = {{0, 1}, {1, 3}};
  for (const bool threaded : {false, true}) {
    std::vector<std::string> notes;
    NotedGroup group(notes);
    Lane lane("a lane", {.threaded = threaded});
    lane.all_to_all(&group, nullptr, nullptr, 1, DType::f32);
    lane.all_to_all_v(&group, nullptr, sent, nullptr, received, DType::f32);
    lane.transfers_start(&group);
    lane.send(&group, nullptr, 4, DType::f32, 1);
    lane.receive(&group, nullptr, 5, DType::f32, 1);
    lane.wait(lane.transfers_end(&group));
    lane.wait(lane.barrier(&group));
    CHECK(notes == std::vector<std::string>{"all_to_all 1", "all_to_all_v 2 3", "start 0", "send to 1 4",
                                            "receive from 1 5", "end 0", "barrier 0"});
  }
}

TEST_CASE("lanes do not wait for each other") {
  std::vector<std::string> notes_a, notes_b;
  NotedGroup a(notes_a), b(notes_b);
  const auto failure = std::make_shared<LaneFailure>();
  Lane first("first", {.threaded = true, .failure = failure}), second("second", {.threaded = true, .failure = failure});
  a.hold();
  const auto held = first.all_reduce(&a, nullptr, 1, DType::f32);
  for (int64_t i = 0; i < 100; ++i) second.wait(second.all_reduce(&b, nullptr, i, DType::f32));
  CHECK(notes_a.empty());
  CHECK(notes_b.size() == 100);
  a.release();
  first.wait(held);
  CHECK(notes_a.size() == 1);
}

TEST_CASE("a failure of one lane ends what the others wait for, and is what all of them throw") {
  std::vector<std::string> notes_a, notes_b;
  NotedGroup a(notes_a), b(notes_b);
  const auto failure = std::make_shared<LaneFailure>();
  Lane first("first", {.threaded = true, .failure = failure}), second("second", {.threaded = true, .failure = failure});
  a.hold();
  b.fail_at(2);
  const auto held = first.all_reduce(&a, nullptr, 1, DType::f32);
  const auto after = first.all_reduce(&a, nullptr, 2, DType::f32);
  wait_for([&] { return a.num_begun() == 1; });
  CHECK_THROWS_WITH(second.wait(second.all_reduce(&b, nullptr, 2, DType::f32)), "failed at 2");
  CHECK_THROWS_WITH(first.wait(held), "failed at 2");
  CHECK_THROWS_WITH(first.wait(after), "failed at 2");
  CHECK_THROWS_WITH(second.wait_all(), "failed at 2");
  CHECK(notes_a.empty());
}

TEST_CASE("opposing transfers of neighbours meet on two lanes, and could not on one") {
  for (const int size : {2, 3, 5}) {
    INFO(size << " stages");
    CHECK(run_stages(size, true).empty());
    CHECK(run_stages(size, false).find("wait for each other") != std::string::npos);
  }
}

TEST_CASE("issuing does not wait, and waiting waits for one ticket only") {
  std::vector<std::string> notes;
  NotedGroup first(notes), second(notes);
  Lane lane("a lane", {.threaded = true});
  second.hold();
  const auto ticket = lane.all_reduce(&first, nullptr, 1, DType::f32);
  const auto held = lane.all_reduce(&second, nullptr, 2, DType::f32);
  CHECK(held > ticket);
  lane.wait(ticket);
  wait_for([&] { return second.num_begun() == 1; });
  CHECK(notes == std::vector<std::string>{"all_reduce 1"});
  second.release();
  lane.wait_all();
  CHECK(notes.size() == 2);
}

TEST_CASE("a log holds every collective, and the waits that had to wait") {
  std::vector<std::string> notes;
  NotedGroup group(notes);
  EventLog log;
  Lane lane("a lane", {.threaded = true});
  lane.set_log(&log);
  lane.wait(lane.all_reduce(&group, nullptr, 7, DType::f32));
  log.start();
  group.hold();
  const double before = steady_seconds();
  const auto held = lane.reduce_scatter(&group, nullptr, nullptr, 1024, DType::bf16);
  std::thread releases([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    group.release();
  });
  lane.wait(held);
  lane.wait(held);
  releases.join();
  log.stop();
  lane.wait(lane.all_reduce(&group, nullptr, 9, DType::f32));
  const std::vector<Event> events = log.take(log.end());
  REQUIRE(events.size() == 2);
  const Event& collective = events[0];
  CHECK(collective.kind == Event::Kind::collective);
  CHECK(collective.name == "reduce_scatter");
  CHECK(collective.shape == "4.0 KiB bf16 over 2 ranks");
  CHECK(collective.bytes_moved == 4096);
  CHECK(collective.start_seconds >= before);
  const Event& wait = events[1];
  CHECK(wait.kind == Event::Kind::wait);
  CHECK(wait.name == "waiting for ranks");
  CHECK(wait.awaits == 0);
  CHECK(wait.start_seconds >= before);
  CHECK(wait.end_seconds >= collective.end_seconds);
  CHECK(wait.end_seconds - before >= 0.019);
}

TEST_CASE("a group of one, or none, moves nothing") {
  std::vector<std::string> notes;
  Lane lane("a lane", {.threaded = true});
  auto alone = make_local_group(1);
  CHECK(lane.all_reduce(nullptr, nullptr, 5, DType::f32) == Lane::done);
  CHECK(lane.all_gather(alone.front().get(), nullptr, nullptr, 5, DType::f32) == Lane::done);
  lane.wait(Lane::done);
  lane.wait_all();
}

TEST_CASE("what a collective throws is thrown by every later wait, and what follows is left out") {
  std::vector<std::string> notes;
  NotedGroup group(notes);
  group.fail_at(2);
  Lane lane("a lane", {.threaded = true});
  const auto first = lane.all_reduce(&group, nullptr, 1, DType::f32);
  lane.wait(first);
  const auto second = lane.all_reduce(&group, nullptr, 2, DType::f32);
  const auto third = lane.all_reduce(&group, nullptr, 3, DType::f32);
  CHECK_THROWS_WITH(lane.wait(second), "failed at 2");
  CHECK_THROWS_WITH(lane.wait(third), "failed at 2");
  CHECK_THROWS_WITH(lane.wait_all(), "failed at 2");
  CHECK(notes == std::vector<std::string>{"all_reduce 1", "all_reduce 2"});
}

TEST_CASE("without a thread a failure comes where the collective is issued") {
  std::vector<std::string> notes;
  NotedGroup group(notes);
  group.fail_at(2);
  Lane lane("a lane", {});
  lane.wait(lane.all_reduce(&group, nullptr, 1, DType::f32));
  CHECK_THROWS_WITH(lane.all_reduce(&group, nullptr, 2, DType::f32), "failed at 2");
}

TEST_CASE("a full lane makes the caller wait, and loses nothing") {
  constexpr int64_t count = 1000;  // many times the lane's room
  std::vector<std::string> notes;
  NotedGroup group(notes);
  Lane lane("a lane", {.threaded = true});
  group.hold();
  std::atomic<int64_t> issued{0};
  bool waited = false;
  std::thread releasing([&] {
    wait_for([&] { return issued > 0 && group.num_begun() == 1; });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    waited = issued < count;
    group.release();
  });
  for (int64_t i = 0; i < count; ++i) {
    lane.all_reduce(&group, nullptr, i, DType::f32);
    ++issued;
  }
  lane.wait_all();
  releasing.join();
  CHECK(waited);
  REQUIRE(notes.size() == count);
  for (int64_t i = 0; i < count; ++i) CHECK(notes[static_cast<size_t>(i)] == "all_reduce " + std::to_string(i));
}

TEST_CASE("what was issued is run before the lane ends") {
  std::vector<std::string> notes;
  NotedGroup group(notes);
  {
    Lane lane("a lane", {.threaded = true});
    for (int64_t i = 0; i < 10; ++i) lane.all_reduce(&group, nullptr, i, DType::f32);
  }
  CHECK(notes.size() == 10);
}

TEST_CASE("a lane that has failed ends, though nobody waited for it") {
  std::vector<std::string> notes;
  NotedGroup group(notes);
  group.fail_at(0);
  {
    Lane lane("a lane", {.threaded = true});
    for (int64_t i = 0; i < 10; ++i) lane.all_reduce(&group, nullptr, i, DType::f32);
  }
  CHECK(notes.size() == 1);
}

TEST_CASE("ranks sum in the background while they go on") {
  constexpr int size = 3;
  auto groups = make_local_group(size);
  std::vector<std::thread> ranks;
  std::vector<std::vector<float>> results(size);
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank, group = std::move(groups[static_cast<size_t>(rank)])] {
      Lane lane("a lane", {.threaded = true});
      std::vector<float> sums(100);
      std::vector<Lane::Ticket> tickets;
      for (size_t i = 0; i < sums.size(); ++i) {
        sums[i] = static_cast<float>(rank + 1) * static_cast<float>(i);
        tickets.push_back(lane.all_reduce(group.get(), &sums[i], 1, DType::f32));
      }
      for (const auto ticket : tickets) lane.wait(ticket);
      results[static_cast<size_t>(rank)] = sums;
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::vector<float>& sums : results)
    for (size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == 6.0F * static_cast<float>(i));
}

TEST_CASE("a planned lane writes down every call, what it sends, and every wait") {
  const auto group = make_plan_communicator(1, 4);
  EventLog log;
  Lane lane("a lane", {.number = 2, .groups = {nullptr, group.get()}});
  lane.set_log(&log);
  lane.all_reduce(group.get(), nullptr, 5, DType::f32);
  CHECK(log.end() == 0);  // the log is off
  log.start();
  const auto check_next = [&](std::string_view name, const char* shape, int64_t sent) {
    const std::vector<Event> events = log.take(log.end());
    REQUIRE(events.size() == 1);
    const Event& event = events.front();
    CHECK(event.kind == Event::Kind::collective);
    CHECK(event.name == name);
    CHECK(event.shape == shape);
    CHECK(event.sent_bytes == sent);
    CHECK(event.channel.lane == 2);
    CHECK(event.channel.group == 1);
    CHECK(event.ranks == 4);
  };
  // An all-reduce of n = 400 bytes over P = 4 ranks sends 2 n (P - 1) / P bytes.
  lane.all_reduce(group.get(), nullptr, 100, DType::f32);
  check_next("all_reduce", "400 B f32 over 4 ranks", 600);
  // Pieces of 400 bytes, one to each other rank.
  lane.reduce_scatter(group.get(), nullptr, nullptr, 100, DType::f32);
  check_next("reduce_scatter", "1.6 KiB f32 over 4 ranks", 1200);
  lane.all_gather(group.get(), nullptr, nullptr, 100, DType::bf16);
  check_next("all_gather", "800 B bf16 over 4 ranks", 600);
  lane.all_to_all(group.get(), nullptr, nullptr, 100, DType::f64);
  check_next("all_to_all", "3.1 KiB f64 over 4 ranks", 2400);
  // A quarter to each other rank, and as much again as the root.
  lane.broadcast(group.get(), nullptr, 100, DType::f32, 0);
  check_next("broadcast", "400 B f32 over 4 ranks", 300);
  lane.broadcast(group.get(), nullptr, 100, DType::f32, 1);
  check_next("broadcast", "400 B f32 over 4 ranks", 600);
  lane.send(group.get(), nullptr, 100, DType::f32, 2);
  check_next("send", "400 B f32 over 4 ranks", 400);
  lane.receive(group.get(), nullptr, 100, DType::f32, 2);
  check_next("receive", "400 B f32 over 4 ranks", 0);
  const std::vector<PeerPart> parts = {{0, 5}, {5, 1000}, {0, 0}, {7, 2}};  // the part that stays is not sent
  lane.all_to_all_v(group.get(), nullptr, parts, nullptr, parts, DType::bf16);
  check_next("all_to_all_v", "2.0 KiB bf16 over 4 ranks", 14);

  const Lane::Ticket before = lane.all_reduce(group.get(), nullptr, 1, DType::f32);
  log.take(log.end());
  lane.wait(before);
  lane.transfers_start(group.get());
  lane.send(group.get(), nullptr, 1, DType::f32, 0);
  lane.receive(group.get(), nullptr, 1, DType::f32, 2);
  const Lane::Ticket both = lane.transfers_end(group.get());
  lane.all_reduce(group.get(), nullptr, 1, DType::f32);
  lane.wait(both);
  log.stop();
  lane.wait_all();
  const std::vector<Event> events = log.take(log.end());
  REQUIRE(events.size() == 5);
  CHECK(events[0].kind == Event::Kind::wait);
  CHECK(events[0].awaits == -1);  // taken before
  CHECK(events[4].kind == Event::Kind::wait);
  CHECK(events[4].awaits == 2);
}

TEST_CASE("transfers that run together have one time, which others do not take") {
  for (const bool threaded : {false, true}) {
    std::vector<std::string> notes;
    NotedGroup group(notes);
    EventLog log;
    Lane lane("a lane", {.threaded = threaded});
    lane.set_log(&log);
    log.start();
    lane.transfers_start(&group);
    lane.send(&group, nullptr, 1, DType::f32, 1);
    log.add({.name = "another"});
    lane.receive(&group, nullptr, 1, DType::f32, 1);
    lane.transfers_end(&group);
    lane.send(&group, nullptr, 1, DType::f32, 1);
    lane.wait_all();
    const std::vector<Event> events = log.take(4);
    CHECK(events[0].start_seconds == events[2].start_seconds);
    CHECK(events[0].end_seconds == events[2].end_seconds);
    CHECK(events[1].end_seconds == 0);
    if (!threaded) continue;
    CHECK(events[0].start_seconds > 0);
    CHECK(events[3].start_seconds >= events[2].end_seconds);
  }
}

}  // namespace test_lane
