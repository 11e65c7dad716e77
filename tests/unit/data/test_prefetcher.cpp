#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "count_allocations.h"
#include "data/prefetcher.h"
#include "support.h"

namespace gptrain {
namespace {

using test::contains;
using test::error_of;
using test::RawTokenFile;
using test::write_counting_tokens;

constexpr int64_t sequence_length = 5;

struct Fixture {
  Fixture() { write_counting_tokens(folder / "count", 0, 5001); }

  TemporaryFolder folder;
  std::vector<std::byte> ring;

  Dataset open() const { return Dataset({{folder / "count", 1}}, sequence_length, 60000, 3, true); }

  // Guard bytes after the ring reveal writes beyond it.
  std::byte* make_ring(int64_t batch, int depth) {
    ring.assign(static_cast<size_t>(depth * MicroBatchShape{batch, sequence_length}.bytes() + 64), std::byte{0xA5});
    return ring.data();
  }
  bool guard_intact() const {
    return std::all_of(ring.end() - 64, ring.end(), [](std::byte byte) { return byte == std::byte{0xA5}; });
  }
};

TEST_CASE("A micro-batch lies within its bytes, its parts aligned and apart") {
  CHECK(MicroBatchShape{1, 1}.bytes() == 3 * 256);
  CHECK(MicroBatchShape{8, 1024}.bytes() == 2 * 8 * 1024 * 4 + 256);
  CHECK(MicroBatchShape{3, 100}.bytes() == 2 * 1280 + 256);
  std::vector<std::byte> memory(static_cast<size_t>(MicroBatchShape{3, 100}.bytes()));
  const MicroBatch batch = MicroBatch::at(memory.data(), {3, 100});
  CHECK(reinterpret_cast<std::byte*>(batch.tokens) == memory.data());
  CHECK(reinterpret_cast<std::byte*>(batch.targets) == memory.data() + 1280);
  CHECK(reinterpret_cast<std::byte*>(batch.sample_ids) == memory.data() + 2560);
}

TEST_CASE("A micro-batch has room for the starts of documents where they are asked for") {
  CHECK(MicroBatchShape{3, 100, true}.bytes() == 3 * 1280 + 256);
  std::vector<std::byte> memory(static_cast<size_t>(MicroBatchShape{3, 100, true}.bytes()));
  CHECK(reinterpret_cast<std::byte*>(MicroBatch::at(memory.data(), {3, 100, true}).document_starts) ==
        memory.data() + 2560 + 256);
  CHECK(MicroBatch::at(memory.data(), {3, 100}).document_starts == nullptr);
}

TEST_CASE("The starts of documents come with their samples") {
  const TemporaryFolder folder;
  RawTokenFile::of({{1, 2, 3}, {4}, {5, 6, 7, 8, 9, 10, 11}}, 8).write(folder / "docs");
  const Dataset dataset({{folder / "docs", 1}}, sequence_length, 60000, 3, false);
  std::vector<std::byte> ring(static_cast<size_t>(2 * MicroBatchShape{2, sequence_length, true}.bytes()));
  Prefetcher prefetcher(dataset, {2, sequence_length, true}, 0, 2, ring.data(), {1, 2});
  for (int i = 0; i < 3; ++i) {
    const MicroBatch& micro_batch = prefetcher.next();
    const std::vector<int32_t> starts(micro_batch.document_starts, micro_batch.document_starts + 2 * sequence_length);
    CHECK(starts == std::vector<int32_t>{0, 0, 0, 3, 4, 0, 0, 0, 0, 0});
  }
}

TEST_CASE_METHOD(Fixture, "Every batch size and depth gives the samples of Dataset::read") {
  const Dataset dataset = open();
  for (const int64_t batch : {1, 3, 8}) {
    for (const int depth : {1, 2, 5}) {
      Prefetcher prefetcher(dataset, {batch, sequence_length}, 17, batch, make_ring(batch, depth), {1, depth});
      std::vector<int32_t> tokens(sequence_length);
      std::vector<int32_t> targets(sequence_length);
      for (int64_t sample = 17; sample < 17 + 20 * batch;) {
        const MicroBatch& micro_batch = prefetcher.next();
        for (int64_t b = 0; b < batch; ++b, ++sample) {
          REQUIRE(micro_batch.sample_ids[b] == sample);
          dataset.read(sample, tokens.data(), targets.data());
          REQUIRE(std::equal(tokens.begin(), tokens.end(), micro_batch.tokens + b * sequence_length));
          REQUIRE(std::equal(targets.begin(), targets.end(), micro_batch.targets + b * sequence_length));
        }
      }
      CHECK(guard_intact());
    }
  }
}

TEST_CASE_METHOD(Fixture, "The ring is reused, but never what is still in use") {
  const Dataset dataset = open();
  constexpr int depth = 3;
  Prefetcher prefetcher(dataset, {2, sequence_length}, 0, 2, make_ring(2, depth), {1, depth});
  std::vector<const int32_t*> buffers;
  for (int64_t k = 0; k < 2 * depth; ++k) {
    const MicroBatch& micro_batch = prefetcher.next();
    buffers.push_back(micro_batch.tokens);
    // Gives the reader time to fill everything it may fill.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(micro_batch.sample_ids[0] == 2 * k);
  }
  for (size_t k = 0; k < depth; ++k) CHECK(buffers[k] == buffers[k + depth]);
  CHECK(std::set<const int32_t*>(buffers.begin(), buffers.end()).size() == depth);
}

TEST_CASE_METHOD(Fixture, "What is kept stays as it is, however far the reader is") {
  const Dataset dataset = open();
  constexpr int depth = 5, kept = 3;
  Prefetcher prefetcher(dataset, {2, sequence_length}, 0, 2, make_ring(2, depth), {kept, depth});
  std::vector<MicroBatch> taken;
  for (int64_t k = 0; k < 3 * depth; ++k) {
    taken.push_back(prefetcher.next());
    // Gives the reader time to fill everything it may fill.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (int64_t j = std::max<int64_t>(0, k + 1 - kept); j <= k; ++j)
      CHECK(taken[static_cast<size_t>(j)].sample_ids[0] == 2 * j);
  }
  CHECK(taken[0].sample_ids[0] != 0);  // given back, and used again
}

TEST_CASE_METHOD(Fixture, "Reading allocates nothing") {
  const Dataset dataset = open();
  Prefetcher prefetcher(dataset, {4, sequence_length}, 0, 4, make_ring(4, 2), {1, 2});
  prefetcher.next();
  const int64_t before = num_allocations();
  int64_t last = 0;
  for (int i = 0; i < 200; ++i) last = prefetcher.next().sample_ids[3];
  const int64_t after = num_allocations();
  CHECK(after == before);
  CHECK(last == 803);
}

TEST_CASE("Micro-batches that cannot be read have no targets, and come after what was read before them") {
  const TemporaryFolder folder;
  RawTokenFile::of({{1, 2, 3, 4, 5, 6, 999, 8, 9}}, 8).write(folder / "bad");
  const Dataset dataset({{folder / "bad", 1}}, 2, 257, 1, false);
  std::vector<std::byte> ring(static_cast<size_t>(4 * MicroBatchShape{1, 2}.bytes()));
  Prefetcher prefetcher(dataset, {1, 2}, 0, 1, ring.data(), {1, 4});
  CHECK(prefetcher.next().tokens[0] == 1);
  CHECK(prefetcher.next().tokens[0] == 3);
  CHECK(!prefetcher.is_void());
  for (int i = 0; i < 2; ++i) {
    const MicroBatch& blank = prefetcher.next();
    CHECK(std::vector(blank.targets, blank.targets + 2) == std::vector<int32_t>{-1, -1});
    CHECK(std::vector(blank.tokens, blank.tokens + 2) == std::vector<int32_t>{0, 0});
    CHECK(prefetcher.is_void());
    CHECK(contains(prefetcher.fault(), "bad.bin, byte 12: token 999"));
  }
}

TEST_CASE_METHOD(Fixture, "A prefetcher may end at any time") {
  const Dataset dataset = open();
  for (int i = 0; i < 50; ++i) {
    Prefetcher prefetcher(dataset, {3, sequence_length}, 0, 3, make_ring(3, 1 + i % 4), {1, 1 + i % 4});
    for (int k = 0; k < i % 6; ++k) prefetcher.next();
  }
  CHECK(guard_intact());
}

TEST_CASE_METHOD(Fixture, "Waiting is measured") {
  const Dataset dataset = open();
  Prefetcher prefetcher(dataset, {1, sequence_length}, 0, 1, make_ring(1, 2), {1, 2});
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 500; ++i) prefetcher.next();
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double waited = prefetcher.waited_seconds();
  CHECK(waited >= 0);
  CHECK(waited <= elapsed);
  // A full ring is handed out without waiting.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  prefetcher.next();
  CHECK(prefetcher.waited_seconds() == waited);
}

TEST_CASE_METHOD(Fixture, "The reader runs at nice 19") {
  const Dataset dataset = open();
  std::set<std::filesystem::path> before;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) before.insert(entry.path());
  Prefetcher prefetcher(dataset, {1, sequence_length}, 0, 1, make_ring(1, 2), {1, 2});
  prefetcher.next();
  std::vector<std::filesystem::path> added;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    if (!before.contains(entry.path())) added.push_back(entry.path());
  }
  REQUIRE(added.size() == 1);

  const std::string stat = read_file(added[0] / "stat");
  std::istringstream fields(stat.substr(stat.rfind(')') + 2));  // from the third field on; nice is the nineteenth
  std::string nice;
  for (int field = 3; field <= 19; ++field) fields >> nice;
  CHECK(nice == "19");
}

}  // namespace
}  // namespace gptrain
