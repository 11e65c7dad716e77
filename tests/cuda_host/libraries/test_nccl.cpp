// Collectives between devices by NCCL, without devices (nccl_stand_in.h): their results, and the end of all ranks when
// calls are slow, fail, or when ranks leave.
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/philox.h"
#include "catch.h"
#include "comm/device_groups.h"
#include "nccl_stand_in.h"
#include "some_cases.h"
#include "streams.h"
#include "unit/comm/ranks.h"

using namespace gptrain;
using nccl_stand_in::Failure;

namespace {

constexpr int num_lanes = 2;
constexpr double timeout_seconds = 60;  // longer than any thread waits for a core

class Memory final : public DeviceMemory {
 public:
  explicit Memory(int64_t bytes) : DeviceMemory(nullptr, bytes), bytes_of_it_(static_cast<size_t>(bytes)) {
    data_ = bytes_of_it_.data();
  }

 private:
  std::vector<std::byte> bytes_of_it_;
};

// The parts of a lane's queue that device groups use.
class Lane final : public SideQueue {
 public:
  explicit Lane(uint64_t seed) : stream_(seed) {}

  void* handle() const override { return const_cast<CUstream_st*>(&stream_); }
  void while_waiting(std::function<void()> check) override { check_ = std::move(check); }
  void look() const { check_(); }

  void mark_ops(int) override { refuse(); }
  void follow_ops(int) override { refuse(); }
  void mark_work(int) override { refuse(); }
  void ops_follow(int) override { refuse(); }
  void await_ops(int) override { refuse(); }
  void await_work(int) override { refuse(); }
  void time_ops(int) override { refuse(); }
  double seconds_between(int, int) override { refuse(); }
  void upload(void*, const void*, int64_t) override { refuse(); }
  void download(void*, const void*, int64_t) override { refuse(); }
  void queue_upload(void*, const void*, int64_t) override { refuse(); }
  void queue_download(void*, const void*, int64_t) override { refuse(); }
  void copy_among_ops(void*, const void*, int64_t) override { refuse(); }
  std::unique_ptr<DeviceMemory> allocate_host(int64_t) override { refuse(); }
  void finish_work(int) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("a call that device groups do not need"); }

  CUstream_st stream_;
  std::function<void()> check_;
};

// Data of one collective, which must live until its work is done.
struct Buffers {
  std::vector<float> in, on_device, on_host;
};

// One rank's lanes with a device group each, and the same groups on the host.
struct Rank {
  std::vector<std::unique_ptr<Buffers>> buffers;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::unique_ptr<Memory>> scratch;
  std::vector<std::unique_ptr<Communicator>> on_devices;
  std::vector<Communicator*> on_host;

  // `like`: the use of each lane's group.
  Rank(const std::vector<Communicator*>& host, int64_t scratch_bytes, const LinkedGroup& like = {.in_pairs = true},
       double timeout = timeout_seconds)
      : on_host(host) {
    std::vector<LinkedGroup> groups;
    for (size_t i = 0; i < host.size(); ++i) {
      lanes.push_back(std::make_unique<Lane>(static_cast<uint64_t>(host[i]->rank()) * 16 + i));
      scratch.push_back(std::make_unique<Memory>(scratch_bytes));
      groups.push_back({host[i], lanes[i].get(), scratch[i].get(), like.one_way, like.in_pairs, like.has_few_bytes});
    }
    on_devices = make_linked_communicators(groups, timeout);
  }
  // Members are destroyed from the last to the first: communicators before the streams and data of their work.
};

// Runs a body on each rank's thread, with groups of all ranks on the host. Returns the ranks' messages.
std::vector<std::string> run(int size, const std::function<void(int rank, const std::vector<Communicator*>&)>& body) {
  std::vector<std::vector<std::unique_ptr<Communicator>>> handles;
  for (int lane = 0; lane < num_lanes; ++lane) handles.push_back(make_local_group(size));
  std::vector<std::string> messages(static_cast<size_t>(size));
  const auto errors = run_rank_threads(size, [&](int rank) {
    std::vector<Communicator*> groups;
    std::vector<std::unique_ptr<Communicator>> own;
    for (auto& lane : handles) own.push_back(std::move(lane[static_cast<size_t>(rank)]));
    for (const auto& group : own) groups.push_back(group.get());
    try {
      body(rank, groups);
    } catch (const std::runtime_error& error) {
      if (dynamic_cast<const Error*>(&error) != nullptr) throw;
      messages[static_cast<size_t>(rank)] = error.what();
    }
  });
  for (size_t i = 0; i < messages.size(); ++i)
    if (messages[i].empty()) messages[i] = errors[i];
  return messages;
}

uint32_t word(uint64_t seed, int index) {
  return philox({static_cast<uint32_t>(seed), 5}, {static_cast<uint32_t>(index), 0, 0, 0})[0];
}

std::vector<float> numbers(int rank, int call, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(word(static_cast<uint64_t>(call), static_cast<int>(i) * 8 + rank)) / 1e9F);
  return values;
}

// Runs collective number `call` on a group: the kind and the lengths are the same on all ranks.
void collect(Communicator& group, uint64_t seed, int call, std::vector<float>& in, std::vector<float>& out) {
  const int kind = static_cast<int>(word(seed, call) % 6);
  const int64_t count = 1 + word(seed, call + 1000) % 700;
  const int size = group.size();
  in = numbers(group.rank(), call, count * size);
  out.assign(static_cast<size_t>(count * size), -1);
  const int root = static_cast<int>(word(seed, call + 2000)) % size;
  switch (kind) {
    case 0:
      out = in;
      return group.all_reduce(out.data(), count * size, DType::f32, ReduceOp::sum);
    case 1:
      return group.reduce_scatter(in.data(), out.data(), count, DType::f32, ReduceOp::max);
    case 2:
      return group.all_gather(in.data(), out.data(), count, DType::f32);
    case 3:
      return group.all_to_all(in.data(), out.data(), count, DType::f32);
    case 4:
      out = in;
      return group.broadcast(out.data(), count, DType::f32, std::abs(root));
    default: {
      const int next = (group.rank() + 1) % size, last = (group.rank() + size - 1) % size;
      group.group_start();
      group.send(in.data(), count, DType::f32, next);
      group.receive(out.data(), count, DType::f32, last);
      return group.group_end();
    }
  }
}

// Runs `calls` collectives on lanes in turns, waiting now and then, and compares all results with those of the host.
void run_collectives(Rank& rank, uint64_t seed, int calls) {
  auto& all = rank.buffers;
  for (int call = 0; call < calls; ++call) {
    const size_t lane = word(seed, call + 3000) % num_lanes;
    all.push_back(std::make_unique<Buffers>());
    collect(*rank.on_devices[lane], seed, call, all.back()->in, all.back()->on_device);
    std::vector<float> in;
    collect(*rank.on_host[lane], seed, call, in, all.back()->on_host);
    if (word(seed, call + 4000) % 5 == 0) rank.on_devices[lane]->synchronize();
    rank.lanes.front()->look();
  }
  for (const auto& group : rank.on_devices) group->synchronize();
  for (const auto& each : all)
    if (std::memcmp(each->on_device.data(), each->on_host.data(), each->on_host.size() * sizeof(float)) != 0)
      throw std::runtime_error("another result than on the host");
}

void require_no_faults() {
  wait_for_destroyed_streams();
  CHECK(nccl_stand_in::faults() == std::vector<std::string>{});
  CHECK(nccl_stand_in::num_communicators() == 0);
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("collectives by NCCL have the host's bits, however slow its calls are") {
  for (int size : {2, 3, 4}) {
    for (uint64_t seed = 1; seed <= uint64_t{testing::some_cases() ? 2U : 10U}; ++seed) {
      CAPTURE(size, seed);
      nccl_stand_in::begin(seed);
      // With little scratch memory sums take many pieces, with much they are whole.
      const int64_t scratch_bytes = seed % 2 == 0 ? 1 << 20 : 4096;
      const auto messages = run(size, [&](int, const std::vector<Communicator*>& groups) {
        Rank rank(groups, scratch_bytes);
        run_collectives(rank, seed, 24);
      });
      CHECK(messages == std::vector<std::string>(static_cast<size_t>(size)));
      CHECK(nccl_stand_in::most_blocks() == 8);  // an eighth of 64 multiprocessors
      require_no_faults();
    }
  }
}

TEST_CASE("groups connect when they are made, in the ways that they will use") {
  struct Way {
    LinkedGroup use;
    std::string_view call;  // connects the ranks
    int size;
    int blocks;
  };
  const std::vector<Way> ways = {{{.one_way = true}, "ncclSend", 2, 8},
                                 {{.in_pairs = true}, "ncclRecv", 3, 8},
                                 {{.in_pairs = true}, "ncclAllGather", 3, 8},
                                 {{.has_few_bytes = true}, "ncclAllGather", 3, 1}};
  for (const Way& way : ways) {
    CAPTURE(way.call, way.size);
    const auto make = [&](int, const std::vector<Communicator*>& groups) { const Rank rank(groups, 4096, way.use); };
    nccl_stand_in::begin(5);
    CHECK(run(way.size, make) == std::vector<std::string>(static_cast<size_t>(way.size)));
    CHECK(nccl_stand_in::most_blocks() == way.blocks);
    require_no_faults();
    nccl_stand_in::begin(5, {.call = way.call, .rank = 0});
    CHECK(holds(run(way.size, make)[0], "NCCL error: a system error"));
    require_no_faults();
  }
}

TEST_CASE("when a rank fails, all others stop and no work is left on devices") {
  for (uint64_t seed = 1; seed <= uint64_t{testing::some_cases() ? 3U : 15U}; ++seed) {
    CAPTURE(seed);
    nccl_stand_in::begin(seed);
    const int failing = static_cast<int>(seed % 3);
    const auto messages = run(3, [&](int number, const std::vector<Communicator*>& groups) {
      Rank rank(groups, 4096);
      run_collectives(rank, seed, static_cast<int>(seed % 7));
      if (number == failing) throw std::runtime_error("a full disk");
      // Work that waits for the rank that is gone, on both lanes.
      for (const auto& group : rank.on_devices) {
        rank.buffers.push_back(std::make_unique<Buffers>());
        rank.buffers.back()->in = numbers(number, 0, 1000);
        group->all_reduce(rank.buffers.back()->in.data(), 1000, DType::f32, ReduceOp::sum);
      }
      for (const auto& group : rank.on_devices) group->synchronize();
    });
    for (int number = 0; number < 3; ++number) {
      const std::string& message = messages[static_cast<size_t>(number)];
      if (number == failing) {
        CHECK(message == "a full disk");
      } else {
        CAPTURE(message);
        const bool is_told = holds(message, "another rank of a group of devices has failed") ||
                             holds(message, "another rank of the group has failed");
        CHECK(is_told);
      }
    }
    require_no_faults();
  }
}

TEST_CASE("errors of NCCL's calls end all ranks with a message") {
  const std::vector<Failure> failures = {
      {.call = "ncclCommInitRankConfig", .rank = 1},
      {.call = "ncclCommInitRankConfig", .rank = 1, .later = true},
      {.call = "ncclCommInitRankConfig", .rank = 0, .later = true},
      {.call = "ncclSend", .rank = 2, .nth = 3},
      {.call = "ncclRecv", .rank = 0, .nth = 2},
      {.call = "ncclGroupEnd", .rank = 1, .nth = 2},
      {.call = "ncclGroupEnd", .rank = 1, .nth = 3, .later = true},
      {.call = "ncclAllGather", .rank = 0},
      {.call = "ncclAllGather", .rank = 2, .later = true},
      {.call = "ncclBroadcast", .rank = 1},
      {.call = "ncclCommGetAsyncError", .rank = 1, .nth = 9},
      {.call = "ncclCommGetAsyncError", .rank = 2, .nth = 12, .later = true},
  };
  for (const Failure& failure : failures) {
    for (uint64_t seed = 1; seed <= uint64_t{testing::some_cases() ? 1U : 4U}; ++seed) {
      CAPTURE(failure.call, failure.rank, failure.nth, failure.later, seed);
      nccl_stand_in::begin(seed, failure);
      const auto messages = run(3, [&](int, const std::vector<Communicator*>& groups) {
        Rank rank(groups, 4096);
        run_collectives(rank, 77, 60);
      });
      CHECK(holds(messages[static_cast<size_t>(failure.rank)], "NCCL error: a system error"));
      for (const std::string& message : messages) CHECK(!message.empty());
      require_no_faults();
    }
  }
}

TEST_CASE("a group that is never made is given up after the timeout") {
  nccl_stand_in::begin(1, {.call = "ncclCommInitRankConfig", .rank = 1, .never = true});
  const auto messages = run(
      2, [&](int, const std::vector<Communicator*>& groups) { const Rank rank(groups, 4096, {.in_pairs = true}, 1); });
  CHECK(
      holds(messages[1], "making a group of devices: not all ranks have come within 1 seconds (comm.timeout_seconds)"));
  CHECK(!messages[0].empty());
  require_no_faults();
}

TEST_CASE("a device group needs an id") {
  nccl_stand_in::begin(1, {.call = "ncclGetUniqueId"});
  const auto messages = run(2, [&](int, const std::vector<Communicator*>& groups) { const Rank rank(groups, 4096); });
  CHECK(holds(messages[0], "naming a group of devices: NCCL error: a system error"));
  CHECK(!messages[1].empty());
  require_no_faults();
}
