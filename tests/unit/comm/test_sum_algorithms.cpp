// Sums by messages between two ranks: their results, and the messages and bytes of their formulas.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <vector>

#include "catch.h"
#include "comm/bench.h"
#include "comm/sum_algorithms.h"
#include "counting_group.h"
#include "ranks.h"

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr SumAlgorithm algorithms[] = {SumAlgorithm::everyone, SumAlgorithm::manager, SumAlgorithm::ring,
                                       SumAlgorithm::halving_doubling};

}  // namespace

TEST_CASE("each way to sum finds the sum on every rank, whatever their number and that of the elements") {
  for (const SumAlgorithm algorithm : algorithms) {
    for (const int size : {1, 2, 3, 5, 8}) {
      for (const int64_t count : {0, 1, 3, 257}) {
        INFO(sum_algorithm_names[algorithm] << " of " << count << " over " << size);
        std::atomic<int> wrong = 0;
        const auto faults = run_ranks(size, [&](Communicator& group) {
          std::vector<float> data(static_cast<size_t>(count)), scratch(static_cast<size_t>(count * size));
          for (int64_t i = 0; i < count; ++i) data[static_cast<size_t>(i)] = static_cast<float>(group.rank() * 7 + i);
          sum_by(algorithm, group, data.data(), count, scratch.data());
          for (int64_t i = 0; i < count; ++i) {
            const auto expected = static_cast<float>(7 * size * (size - 1) / 2 + size * i);
            wrong += data[static_cast<size_t>(i)] != expected ? 1 : 0;
          }
        });
        CHECK(wrong == 0);
        CHECK(std::all_of(faults.begin(), faults.end(), [](const std::string& fault) { return fault.empty(); }));
      }
    }
  }
}

TEST_CASE("ranks send the bytes of the ways' formulas") {
  constexpr int64_t count = 840;  // a multiple of all numbers of ranks below
  for (const int size : {2, 3, 4, 6, 8}) {
    for (const SumAlgorithm algorithm : algorithms) {
      INFO(sum_algorithm_names[algorithm] << " over " << size);
      int64_t most = 0;
      for (int rank = 0; rank < size; ++rank) {
        TrafficTable traffic{};
        CountingGroup group(rank, size, traffic);
        std::vector<float> data(count), scratch(static_cast<size_t>(count * size));
        sum_by(algorithm, group, data.data(), count, scratch.data());
        most = std::max(most, traffic[static_cast<size_t>(Operation::send)].sent_bytes);
      }
      const double bytes = sum_cost(algorithm, size, 4.0 * count).bytes;
      // The manager receives all before it sends as much. A rank that stands in for another receives before it sends.
      const bool stands_in = algorithm == SumAlgorithm::halving_doubling && (size & (size - 1)) != 0;
      const double received = algorithm == SumAlgorithm::manager ? 4.0 * count * (size - 1)
                              : stands_in                        ? 4.0 * count
                                                                 : 0;
      CHECK(static_cast<double>(most) + received == Approx(bytes).epsilon(1e-3));
    }
  }
  CHECK(sum_cost(SumAlgorithm::ring, 4, 0).messages == 6);
  CHECK(sum_cost(SumAlgorithm::halving_doubling, 8, 0).messages == 6);
  CHECK(sum_cost(SumAlgorithm::halving_doubling, 5, 0).messages == 6);
  CHECK(sum_cost(SumAlgorithm::manager, 9, 0).messages == 2);
}

TEST_CASE("a bench of ways to sum has rows of sends, then of each way with the time of its formula") {
  std::vector<BenchRow> rows;
  run_ranks(3, [&](Communicator& group) {
    const auto backend = make_cpu_backend(1);
    bench_collectives({group, group, *backend},
                      {.max_bytes = 4096, .seconds = 1e-4, .algorithms = {SumAlgorithm::ring, SumAlgorithm::manager}},
                      [&](const BenchRow& row) {
                        if (group.rank() == 0) rows.push_back(row);
                      });
  });
  REQUIRE(rows.size() == 6);
  CHECK(rows[0].operation == "send");
  CHECK(rows[0].formula_seconds == 0);
  CHECK(rows[2].operation == "ring");
  CHECK(rows[5].operation == "manager");
  const double rate = rows[1].algorithm_bandwidth, latency = rows[0].seconds;
  CHECK(rows[3].formula_seconds == Approx(4 * latency + 4.0 / 3 * static_cast<double>(rows[3].bytes) / rate));
}
