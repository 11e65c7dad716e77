// One rank of a run, for test_processes.py: runs every collective on inputs whose sums are not exact, and prints on
// rank 0 a checksum of all results of all ranks, which must not depend on the transport.
//
// comm_ranks [FAULT RANK]: with a FAULT, that rank does something wrong:
//   config    has another config
//   call      makes another call than the others
//   error     ends with an error of its own
//   sleep     waits, as do the others for it, until somebody ends them
//   end       does not come to the end of MPI
// COMM_RANKS_THREADS=N runs N ranks as threads.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/philox.h"
#include "comm/process_world.h"

using namespace gptrain;

namespace {

constexpr double timeout_seconds = 2;

// Numbers of different sizes: any other order of a sum rounds differently.
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

// A checksum of this rank's results of every collective of the group.
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

std::vector<int> every(int first, int step, int size) {
  std::vector<int> ranks;
  for (int rank = first; rank < size; rank += step) ranks.push_back(rank);
  return ranks;
}

bool hangs_at_end = false;

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
  const int64_t count = fault == "call" && world.rank() == faulty ? 2 : 1;
  all.all_reduce(data, count, DType::f32, ReduceOp::sum);
}

void run_rank(World& world, const std::string& fault, int faulty) {
  const auto all = world.make_group(every(0, 1, world.size()));
  const auto even = world.make_group(every(0, 2, world.size()));
  const auto odd = world.size() > 1 ? world.make_group(every(1, 2, world.size())) : nullptr;
  if (!fault.empty()) commit_fault(world, *all, fault, faulty);
  int64_t sums[2] = {checksum(*all), checksum(even ? *even : *odd)};
  std::vector<int64_t> all_sums(2 * static_cast<size_t>(world.size()));
  all->all_gather(sums, all_sums.data(), 2, DType::i64);
  if (world.rank() == 0) std::printf("%08x\n", crc32c(all_sums.data(), all_sums.size() * sizeof(int64_t)));
}

}  // namespace

// Called in place of MPI's own, which has this name, too, in a build with MPI.
extern "C" int PMPI_Finalize() __attribute__((weak));
extern "C" int MPI_Finalize();
extern "C" int MPI_Finalize() {
  if (hangs_at_end) std::this_thread::sleep_for(std::chrono::seconds(60));
  return PMPI_Finalize != nullptr ? PMPI_Finalize() : 0;
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
    options.facts = {{"config", fault == "config" && launch.rank == faulty ? "b" : "a"}};
    const auto world = make_process_world(launch, options);
    run_rank(*world, fault, faulty);
  } catch (const Error& error) {
    if (*error.what() != '\0') fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
