// One rank of a run, for test_processes.py. Runs every collective on inputs whose sums are not exact, first alone and
// then on several lanes at a time. Prints on rank 0 a checksum of all results of all ranks, which must not depend on
// the transport. MPI sends synchronously here: no send is buffered.
//
// comm_ranks [FAULT RANK]: with a FAULT, that rank does something wrong:
//   config    has another config
//   call      makes another call than the others
//   lane      does so on one lane, while all wait on another lane for data that nobody sends
//   error     ends with an error of its own
//   sleep     waits until killed, as the others do for it
//   end       does not reach the end of MPI
//   survive   waits until killed; the others wait for it, are told of its loss, and go on without it
// comm_ranks time BYTES: prints on rank 0 the seconds that the fastest of several all-reduces takes.
// COMM_RANKS_THREADS=N runs N ranks as threads. COMM_RANKS_INTERFACE is the address at which a process listens.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/philox.h"
#include "base/units.h"
#include "comm/lane.h"
#include "comm/process_world.h"

using namespace gptrain;

namespace {

constexpr double timeout_seconds = 2;

// Fills with numbers of different sizes, so that any other order of a sum rounds differently.
void fill(std::vector<std::byte>& data, int rank, int64_t count, DType dtype) {
  data.assign(static_cast<size_t>(count * dtype_bytes(dtype)), std::byte{});
  for (int64_t i = 0; i < count; ++i) {
    const auto words = philox({static_cast<uint32_t>(rank), 3}, {static_cast<uint32_t>(i), 0, 0, 0});
    const float number = static_cast<float>(static_cast<int32_t>(words[0])) * (words[1] % 2 == 0 ? 1.0F : 1e-3F);
    if (dtype == DType::bf16) reinterpret_cast<bf16*>(data.data())[i] = to_bf16(number);
    if (dtype == DType::f32) reinterpret_cast<float*>(data.data())[i] = number;
    if (dtype == DType::i64) reinterpret_cast<int64_t*>(data.data())[i] = static_cast<int32_t>(words[0]);
  }
}

// Returns a checksum of this rank's results of every collective of the group.
uint32_t checksum(Communicator& group) {
  uint32_t sum = 0;
  const auto add = [&](const std::vector<std::byte>& data) { sum = crc32c(data.data(), data.size(), sum); };
  for (const DType dtype : {DType::f32, DType::bf16, DType::i64})
    for (const int64_t count : {0, 1, 5, 1000, 4099, 300'007}) {
      std::vector<std::byte> data;
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
        fill(data, group.rank(), count, dtype);
        group.all_reduce(data.data(), count, dtype, op);
        add(data);
      }
      std::vector<std::byte> all;
      fill(all, group.rank(), count * group.size(), dtype);
      group.reduce_scatter(all.data(), data.data(), count, dtype, ReduceOp::sum);
      add(data);
      std::vector<std::byte> gathered(all.size());
      group.all_to_all(all.data(), gathered.data(), count, dtype);
      add(gathered);
      std::vector<PeerPart> sent, received;
      for (int peer = 0; peer < group.size(); ++peer) {
        sent.push_back({peer * count, (group.rank() + 2 * peer) % 3 * count / 2});
        received.push_back({peer * count, (peer + 2 * group.rank()) % 3 * count / 2});
      }
      group.all_to_all_v(all.data(), sent, gathered.data(), received, dtype);
      add(gathered);
      group.all_gather(data.data(), gathered.data(), count, dtype);
      add(gathered);
      group.broadcast(data.data(), count, dtype, group.size() - 1);
      add(data);
      group.group_start();
      group.send(data.data(), count, dtype, (group.rank() + 1) % group.size());
      group.receive(gathered.data(), count, dtype, (group.rank() + group.size() - 1) % group.size());
      group.group_end();
      add(gathered);
      group.barrier();
    }
  return sum;
}

// Returns a checksum of results on several lanes at a time, in the order of issue on each.
uint32_t checksum_of_lanes(World& world, const std::vector<int>& ranks) {
  constexpr int num_lanes = 4, rounds = 60;
  constexpr int64_t count = 20'011;  // several messages long, and not a multiple of any number of ranks
  struct Work {
    std::unique_ptr<Communicator> group;
    std::vector<std::vector<std::byte>> data;
  };
  std::vector<Work> works(num_lanes);
  for (int i = 0; i < num_lanes; ++i) works[static_cast<size_t>(i)].group = world.make_group(ranks, {.lane = "a test"});
  const auto failure = std::make_shared<LaneFailure>();
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < num_lanes; ++i)
    lanes.push_back(std::make_unique<Lane>(fmt::format("{}", i), Lane::Options{true, nullptr, failure}));
  const int next = (world.rank() + 1) % world.size(), before = (world.rank() + world.size() - 1) % world.size();
  for (Work& work : works) work.data.resize(rounds);
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < num_lanes; ++i) {
      Work& work = works[static_cast<size_t>(i)];
      Communicator* const group = work.group.get();
      Lane& lane = *lanes[static_cast<size_t>(i)];
      std::vector<std::byte>& data = work.data[static_cast<size_t>(round)];
      fill(data, world.rank() + 100 * i + 1000 * round, 2 * count, DType::f32);
      std::byte* const second = data.data() + count * 4;
      // The first two pass numbers on in opposite directions.
      if (i < 2) {
        lane.transfers_start(group);
        lane.send(group, data.data(), count, DType::f32, i == 0 ? next : before);
        lane.receive(group, second, count, DType::f32, i == 0 ? before : next);
        lane.transfers_end(group);
      } else if (round % 2 == 0) {
        lane.all_reduce(group, data.data(), i == 2 ? count : 5, DType::f32);
      } else {
        lane.broadcast(group, data.data(), count, DType::f32, round % world.size());
      }
    }
  }
  uint32_t sum = 0;
  for (int i = 0; i < num_lanes; ++i) {
    lanes[static_cast<size_t>(i)]->wait_all();
    for (const auto& data : works[static_cast<size_t>(i)].data) sum = crc32c(data.data(), data.size(), sum);
  }
  return sum;
}

// Fails on one lane on every rank while another lane waits for data that never come.
void fail_on_a_lane(World& world, const std::vector<int>& ranks, int faulty) {
  const auto waiting = world.make_group(ranks, {.lane = "waiting"});
  const auto failing = world.make_group(ranks, {.lane = "failing"});
  const auto failure = std::make_shared<LaneFailure>();
  Lane first("waiting", {.threaded = true, .failure = failure});
  Lane second("failing", {.threaded = true, .failure = failure});
  float data[3] = {};
  const auto ticket = first.receive(waiting.get(), data, 1, DType::f32, (world.rank() + 1) % world.size());
  second.all_reduce(failing.get(), data + 1, world.rank() == faulty ? 2 : 1, DType::f32);
  first.wait(ticket);
}

// Lost ranks, which the heartbeat's thread hands to the rank's thread.
class Losses {
 public:
  void add(const std::vector<int>& ranks) {
    {
      const std::lock_guard lock(mutex_);
      ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
    }
    changed_.notify_all();
  }
  // Returns the lost ranks as soon as there are any.
  std::vector<int> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ranks_.empty(); });
    return ranks_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> ranks_;
};

// Sums 10^rank over the ranks that remain after a loss, in a group of their own.
void survive(World& world, Losses& losses, std::unique_ptr<Communicator> all, int faulty) {
  std::printf("ready\n");
  std::fflush(stdout);
  if (world.rank() == faulty) std::this_thread::sleep_for(std::chrono::seconds(60));
  int64_t sum = 1;
  for (int rank = 0; rank < world.rank(); ++rank) sum *= 10;
  int64_t nothing = 0;
  try {
    all->all_reduce(&nothing, 1, DType::i64, ReduceOp::sum);
    throw Error(ExitCode::data, "the group of all ranks has not noticed the loss");
  } catch (const PeerGone&) {
    all.reset();
  }
  const std::vector<int> lost = losses.wait();
  std::vector<int> remaining;
  for (int rank = 0; rank < world.size(); ++rank)
    if (std::find(lost.begin(), lost.end(), rank) == lost.end()) remaining.push_back(rank);
  world.make_group(remaining)->all_reduce(&sum, 1, DType::i64, ReduceOp::sum);
  std::printf("lost %s, sum %lld\n", list_ranks(lost).c_str(), static_cast<long long>(sum));
}

void time_all_reduce(World& world, Communicator& all, int64_t bytes) {
  std::vector<float> data(static_cast<size_t>(bytes) / sizeof(float));
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    all.barrier();
    const double start = steady_seconds();
    all.all_reduce(data.data(), std::ssize(data), DType::f32, ReduceOp::sum);
    least = std::min(least, steady_seconds() - start);
  }
  if (world.rank() == 0) std::printf("%.6f\n", least);
}

std::vector<int> every(int first, int step, int size) {
  std::vector<int> ranks;
  for (int rank = first; rank < size; rank += step) ranks.push_back(rank);
  return ranks;
}

bool hangs_at_end = false;
bool fails_to_send = false;  // every message over MPI from now on

void commit_fault(World& world, Communicator& all, const std::string& fault, int faulty) {
  float data[2] = {};
  if (fault == "sleep") {
    world.activity().set_step(7);
    world.activity().set_phase("backward");
    std::printf("ready\n");
    std::fflush(stdout);
    if (world.rank() == faulty) std::this_thread::sleep_for(std::chrono::seconds(60));
  }
  hangs_at_end = fault == "end" && world.rank() == faulty;
  if (fault == "error" && world.rank() == faulty) throw Error(ExitCode::data, "a fault of this rank");
  if (fault == "lane") fail_on_a_lane(world, every(0, 1, world.size()), faulty);
  const int64_t count = fault == "call" && world.rank() == faulty ? 2 : 1;
  all.all_reduce(data, count, DType::f32, ReduceOp::sum);
}

void run_rank(World& world, const std::string& fault, int faulty) {
  const auto all = world.make_group(every(0, 1, world.size()));
  const auto even = world.make_group(every(0, 2, world.size()));
  const auto odd = world.size() > 1 ? world.make_group(every(1, 2, world.size())) : nullptr;
  if (!fault.empty()) commit_fault(world, *all, fault, faulty);
  int64_t sums[3] = {checksum(*all), checksum(even ? *even : *odd),
                     checksum_of_lanes(world, every(0, 1, world.size()))};
  std::vector<int64_t> all_sums(3 * static_cast<size_t>(world.size()));
  all->all_gather(sums, all_sums.data(), 3, DType::i64);
  if (world.rank() == 0) std::printf("%08x\n", crc32c(all_sums.data(), all_sums.size() * sizeof(int64_t)));
  fails_to_send = fault == "barrier" && world.rank() == faulty;
}

}  // namespace

// Replaces MPI's own function, whose other name is PMPI_Finalize in a build with MPI.
extern "C" int PMPI_Finalize() __attribute__((weak));
extern "C" int MPI_Finalize();
extern "C" int MPI_Finalize() {
  if (hangs_at_end) std::this_thread::sleep_for(std::chrono::seconds(60));
  return PMPI_Finalize != nullptr ? PMPI_Finalize() : 0;
}

// Types follow MPI's binary interface: handles are pointers.
extern "C" int PMPI_Issend(const void*, int, void*, int, int, void*, void*) __attribute__((weak));
extern "C" int MPI_Isend(const void* data, int count, void* type, int peer, int tag, void* group, void* request);
extern "C" int MPI_Isend(const void* data, int count, void* type, int peer, int tag, void* group, void* request) {
  constexpr int other_error = 16;  // MPI_ERR_OTHER of Open MPI
  return fails_to_send ? other_error : PMPI_Issend(data, count, type, peer, tag, group, request);
}

int main(int argc, char** argv) {
  const std::string fault = argc == 3 ? argv[1] : "";
  const int faulty = argc == 3 ? std::atoi(argv[2]) : -1;
  try {
    if (const char* threads = std::getenv("COMM_RANKS_THREADS")) {
      run_local_ranks(std::atoi(threads), [&](World& world) { run_rank(world, fault, faulty); });
      return 0;
    }
    const Launch launch = find_launch();
    WorldOptions options;
    options.timeout.seconds = timeout_seconds;
    if (const char* interface = std::getenv("COMM_RANKS_INTERFACE")) options.interface = interface;
    options.facts = {{"config", fault == "config" && launch.rank == faulty ? "b" : "a"}};
    Losses losses;
    if (fault == "survive") options.on_loss = [&](const std::vector<int>& lost) { losses.add(lost); };
    const auto world = make_process_world(launch, options);
    if (fault == "survive") {
      survive(*world, losses, world->make_group(every(0, 1, world->size())), faulty);
    } else if (fault == "time") {
      time_all_reduce(*world, *world->make_group(every(0, 1, world->size())), faulty);
    } else {
      run_rank(*world, fault, faulty);
    }
    world->end();
  } catch (const Error& error) {
    if (*error.what() != '\0') fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
