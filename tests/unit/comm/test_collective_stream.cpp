// The stream of one rank's collectives, and the communicator that only writes down what would be sent.
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
#include "comm/collective_stream.h"
#include "comm/plan.h"

using namespace gptrain;

namespace {

// A group of two that notes what it is asked for. While it is held, collectives do not return.
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
  void all_to_all(const void*, void*, int64_t, DType) override {}
  void send(const void*, int64_t, DType, int) override {}
  void receive(void*, int64_t, DType, int) override {}
  void group_start() override {}
  void group_end() override {}
  void barrier() override {}
  void synchronize() override {}

 private:
  void note(const std::string& what, int64_t count) {
    ++num_begun_;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !held_; });
    notes_.push_back(what + " " + std::to_string(count));
    if (count == failing_count_) throw std::runtime_error("failed at " + std::to_string(count));
  }

  std::vector<std::string>& notes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::optional<int64_t> failing_count_;
  std::atomic<int> num_begun_{0};
};

void wait_for(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

}  // namespace

TEST_CASE("collectives of all groups run in the order of issue") {
  for (const bool threaded : {false, true}) {
    std::vector<std::string> notes;
    NotedGroup a(notes), b(notes);
    CollectiveStream stream(threaded);
    stream.all_reduce(&a, nullptr, 1, DType::f32);
    stream.reduce_scatter(&b, nullptr, nullptr, 2, DType::f32);
    stream.all_gather(&a, nullptr, nullptr, 3, DType::f32);
    stream.wait(stream.broadcast(&b, nullptr, 4, DType::f32, 1));
    CHECK(notes == std::vector<std::string>{"all_reduce 1", "reduce_scatter 2", "all_gather 3", "broadcast from 1 4"});
  }
}

TEST_CASE("issuing does not wait, and waiting waits for one ticket only") {
  std::vector<std::string> notes;
  NotedGroup first(notes), second(notes);
  CollectiveStream stream(true);
  second.hold();
  const auto ticket = stream.all_reduce(&first, nullptr, 1, DType::f32);
  const auto held = stream.all_reduce(&second, nullptr, 2, DType::f32);
  CHECK(held > ticket);
  stream.wait(ticket);
  wait_for([&] { return second.num_begun() == 1; });
  CHECK(notes == std::vector<std::string>{"all_reduce 1"});
  second.release();
  stream.wait_all();
  CHECK(notes.size() == 2);
}

TEST_CASE("a recording holds every collective, and the waits that had to wait") {
  std::vector<std::string> notes;
  NotedGroup group(notes);
  CollectiveStream stream(true);
  stream.wait(stream.all_reduce(&group, nullptr, 7, DType::f32));
  stream.start_recording();
  group.hold();
  const double before = steady_seconds();
  const auto held = stream.reduce_scatter(&group, nullptr, nullptr, 1024, DType::bf16);
  std::thread releases([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    group.release();
  });
  stream.wait(held);
  stream.wait(held);
  releases.join();
  const CollectiveStream::Recording recording = stream.take_recording();
  REQUIRE(recording.collectives.size() == 1);
  const TimedEvent& collective = recording.collectives.front();
  CHECK(collective.name == "reduce_scatter");
  CHECK(collective.shape == "4.0 KiB bf16 over 2 ranks");
  CHECK(collective.bytes_moved == 4096);
  CHECK(collective.start_seconds >= before);
  REQUIRE(recording.waits.size() == 1);
  const TimedEvent& wait = recording.waits.front();
  CHECK(wait.name == "waiting for ranks");
  CHECK(wait.start_seconds >= before);
  CHECK(wait.end_seconds >= collective.end_seconds);
  CHECK(wait.end_seconds - before >= 0.019);
  stream.wait(stream.all_reduce(&group, nullptr, 9, DType::f32));
  CHECK(stream.take_recording().collectives.empty());
}

TEST_CASE("a group of one, or none, moves nothing") {
  std::vector<std::string> notes;
  CollectiveStream stream(true);
  auto alone = make_local_group(1);
  CHECK(stream.all_reduce(nullptr, nullptr, 5, DType::f32) == CollectiveStream::done);
  CHECK(stream.all_gather(alone.front().get(), nullptr, nullptr, 5, DType::f32) == CollectiveStream::done);
  stream.wait(CollectiveStream::done);
  stream.wait_all();
}

TEST_CASE("what a collective throws is thrown by every later wait, and what follows is left out") {
  std::vector<std::string> notes;
  NotedGroup group(notes);
  group.fail_at(2);
  CollectiveStream stream(true);
  const auto first = stream.all_reduce(&group, nullptr, 1, DType::f32);
  stream.wait(first);
  const auto second = stream.all_reduce(&group, nullptr, 2, DType::f32);
  const auto third = stream.all_reduce(&group, nullptr, 3, DType::f32);
  CHECK_THROWS_WITH(stream.wait(second), "failed at 2");
  CHECK_THROWS_WITH(stream.wait(third), "failed at 2");
  CHECK_THROWS_WITH(stream.wait_all(), "failed at 2");
  CHECK(notes == std::vector<std::string>{"all_reduce 1", "all_reduce 2"});
}

TEST_CASE("without a thread a failure comes where the collective is issued") {
  std::vector<std::string> notes;
  NotedGroup group(notes);
  group.fail_at(2);
  CollectiveStream stream(false);
  CHECK(stream.all_reduce(&group, nullptr, 1, DType::f32) == CollectiveStream::done);
  CHECK_THROWS_WITH(stream.all_reduce(&group, nullptr, 2, DType::f32), "failed at 2");
}

TEST_CASE("a full stream makes the caller wait, and loses nothing") {
  constexpr int64_t count = 1000;  // many times the stream's room
  std::vector<std::string> notes;
  NotedGroup group(notes);
  CollectiveStream stream(true);
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
    stream.all_reduce(&group, nullptr, i, DType::f32);
    ++issued;
  }
  stream.wait_all();
  releasing.join();
  CHECK(waited);
  REQUIRE(notes.size() == count);
  for (int64_t i = 0; i < count; ++i) CHECK(notes[static_cast<size_t>(i)] == "all_reduce " + std::to_string(i));
}

TEST_CASE("what was issued is run before the stream ends") {
  std::vector<std::string> notes;
  NotedGroup group(notes);
  {
    CollectiveStream stream(true);
    for (int64_t i = 0; i < 10; ++i) stream.all_reduce(&group, nullptr, i, DType::f32);
  }
  CHECK(notes.size() == 10);
}

TEST_CASE("a stream that has failed ends, though nobody waited for it") {
  std::vector<std::string> notes;
  NotedGroup group(notes);
  group.fail_at(0);
  {
    CollectiveStream stream(true);
    for (int64_t i = 0; i < 10; ++i) stream.all_reduce(&group, nullptr, i, DType::f32);
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
      CollectiveStream stream(true);
      std::vector<float> sums(100);
      std::vector<CollectiveStream::Ticket> tickets;
      for (size_t i = 0; i < sums.size(); ++i) {
        sums[i] = static_cast<float>(rank + 1) * static_cast<float>(i);
        tickets.push_back(stream.all_reduce(group.get(), &sums[i], 1, DType::f32));
      }
      for (const auto ticket : tickets) stream.wait(ticket);
      results[static_cast<size_t>(rank)] = sums;
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::vector<float>& sums : results)
    for (size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == 6.0F * static_cast<float>(i));
}

TEST_CASE("the plan's communicator counts calls and the bytes that one rank sends") {
  TrafficTable traffic{};
  const auto group = make_plan_communicator(1, 4, traffic);
  CHECK(group->rank() == 1);
  CHECK(group->size() == 4);
  const auto of = [&](Collective collective) { return traffic[static_cast<size_t>(collective)]; };
  // 400 bytes: 2 n (P - 1) / P.
  group->all_reduce(nullptr, 100, DType::f32, ReduceOp::sum);
  CHECK(of(Collective::all_reduce).sent_bytes == 600);
  // Pieces of 400 bytes, one to each other rank.
  group->reduce_scatter(nullptr, nullptr, 100, DType::f32, ReduceOp::sum);
  CHECK(of(Collective::reduce_scatter).sent_bytes == 1200);
  group->all_gather(nullptr, nullptr, 100, DType::bf16);
  CHECK(of(Collective::all_gather).sent_bytes == 600);
  group->all_to_all(nullptr, nullptr, 100, DType::f64);
  CHECK(of(Collective::all_to_all).sent_bytes == 2400);
  // A quarter to each other rank, and as the root once as much again.
  group->broadcast(nullptr, 100, DType::f32, 0);
  CHECK(of(Collective::broadcast).sent_bytes == 300);
  group->broadcast(nullptr, 100, DType::f32, 1);
  CHECK(of(Collective::broadcast).sent_bytes == 900);
  group->send(nullptr, 100, DType::f32, 2);
  group->receive(nullptr, 100, DType::f32, 2);
  CHECK(of(Collective::point_to_point).sent_bytes == 400);
  group->barrier();
  group->synchronize();
  CHECK(of(Collective::all_reduce).calls == 1);
  CHECK(of(Collective::broadcast).calls == 2);
  CHECK(of(Collective::point_to_point).calls == 1);
}
