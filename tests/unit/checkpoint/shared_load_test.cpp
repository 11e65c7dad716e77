// Data of a checkpoint that several ranks need are read once.
#include "checkpoint/shared_load.h"

#include <algorithm>
#include <exception>
#include <fstream>
#include <numeric>
#include <thread>

#include "catch.h"
#include "helpers.h"

using namespace gptrain;
using namespace checkpoint_test;
namespace fs = std::filesystem;

namespace {

constexpr int loading_ranks = 4;

// Tensors of several pieces each, so that ranks read at different places for a while.
const Tensor wide_table = make_tensor("weight/wide", {700, 600});
const Tensor tall_table = make_tensor("weight/tall", {3000, 100});
const Tensor short_list = make_tensor("weight/small", {13});

// Saves 16 boxes of `wide_table`, 8 of `tall_table` and the whole `short_list`.
fs::path save_boxes(const fs::path& out) {
  Parts parts;
  Random random(3);
  for (const Box& box : random_partition(random, wide_table.shape, 16)) add_part(parts, wide_table, box);
  for (const Box& box : random_partition(random, tall_table.shape, 8)) add_part(parts, tall_table, box);
  add_part(parts, short_list, whole(short_list));
  save_checkpoint(out, make_manifest(1), parts.slices);
  return list_checkpoints(out).back().path;
}

// All ranks need `wide_table`, each its quarter of `tall_table`, and the odd ones `short_list`.
void add_wanted(int rank, const std::function<void(const Tensor&, const Box&)>& add) {
  add(wide_table, whole(wide_table));
  add(tall_table, {{750 * rank, 0}, {750, 100}});
  if (rank % 2 == 1) add(short_list, whole(short_list));
}

struct Loaded {
  Parts parts, expected;
  SharedLoad result;
};

std::vector<Loaded> load_on_ranks(const fs::path& checkpoint) {
  std::vector<Loaded> ranks(loading_ranks);
  auto groups = make_local_group(loading_ranks);
  const Contents contents = read_contents(checkpoint);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < loading_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = std::move(groups[static_cast<size_t>(rank)]);
      Loaded& own = ranks[static_cast<size_t>(rank)];
      add_wanted(rank, [&](const Tensor& tensor, const Box& box) {
        add_empty_part(own.parts, tensor, box);
        add_part(own.expected, tensor, box);
      });
      own.result = load_shared(contents, slice_transfers(contents, own.parts.slices), group.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

std::string text_of_fault(const SharedLoad& load) {
  return error_of([&] {
    if (load.fault) std::rethrow_exception(load.fault);
  });
}

}  // namespace

TEST_CASE("Each byte that ranks need is read by one of them", "[shared load]") {
  const TemporaryFolder out;
  const fs::path checkpoint = save_boxes(out.path());
  const Contents contents = read_contents(checkpoint);
  int64_t stored = 0, largest = 0;
  for (const auto& [name, slices] : contents.tensors) {
    for (const Slice& slice : slices) {
      stored += slice.bytes();
      largest = std::max(largest, slice.bytes());
    }
  }
  CHECK(stored == static_cast<int64_t>(4 * (wide_table.data.size() + tall_table.data.size() + short_list.data.size())));
  const std::vector<Loaded> ranks = load_on_ranks(checkpoint);
  int64_t read = 0;
  for (const Loaded& rank : ranks) {
    CHECK(!rank.result.fault);
    CHECK(same_bits(rank.parts, rank.expected));
    CHECK(rank.result.read_bytes <= stored / loading_ranks + largest);
    read += rank.result.read_bytes;
  }
  CHECK(read == stored);
}

TEST_CASE("Ranks read a share of the headers each, and all know the whole", "[shared load]") {
  const TemporaryFolder out;
  const int64_t step = 7;
  begin_checkpoint(out.path(), step);
  std::vector<std::string> records;
  for (int rank = 0; rank < 5; ++rank) {
    Parts parts;
    add_part(parts, tall_table, {{600 * rank, 0}, {600, 100}});
    records.push_back(write_checkpoint_part(out.path(), step, rank, parts.slices));
  }
  publish_checkpoint(out.path(), make_manifest(step), 1, records);
  const fs::path checkpoint = list_checkpoints(out.path()).back().path;
  for (const int ranks : {1, 2, 3, 7}) {
    INFO(ranks);
    const StoredManifest stored = read_named_manifest(checkpoint);
    std::vector<std::string> headers;
    for (int rank = 0; rank < ranks; ++rank) headers.push_back(read_headers(checkpoint, stored, rank, ranks));
    CHECK(headers.back().empty() == (ranks == 7));
    const Contents contents = contents_of(checkpoint, stored, headers);
    const std::vector<Slice>& slices = contents.tensors.at(tall_table.name);
    REQUIRE(slices.size() == 5);
    for (const Slice& slice : slices) CHECK(slice.box.offset[0] == 600 * static_cast<int64_t>(slice.file));
    // A rank that found another file than the others.
    headers.front().pop_back();
    CHECK(lacking(error_of([&] { contents_of(checkpoint, stored, headers); }), {checkpoint.string(), "changed"}) == "");
  }
}

TEST_CASE("One rank alone reads what it needs, and no more", "[shared load]") {
  const TemporaryFolder out;
  const fs::path checkpoint = save_boxes(out.path());
  const Contents contents = read_contents(checkpoint);
  Parts wanted, expected;
  add_empty_part(wanted, short_list, whole(short_list));
  add_part(expected, short_list, whole(short_list));
  const SharedLoad loaded = load_shared(contents, slice_transfers(contents, wanted.slices), nullptr);
  CHECK(loaded.read_bytes == 4 * 13);
  CHECK(same_bits(wanted, expected));
}

TEST_CASE("A rank that reads damaged bytes says so, and keeps no other waiting", "[shared load]") {
  const TemporaryFolder out;
  const fs::path checkpoint = save_boxes(out.path());
  const fs::path file = checkpoint / "rank-00000.safetensors";
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(static_cast<std::streamoff>(fs::file_size(file) - 1'500'000)).put('\x5a').put('\x5b');
  stream.close();
  int faults = 0;
  for (const Loaded& rank : load_on_ranks(checkpoint)) {
    if (!rank.result.fault) continue;
    ++faults;
    CHECK(lacking(text_of_fault(rank.result), {file.string(), "checksum"}) == "");
  }
  CHECK(faults == 1);
}
