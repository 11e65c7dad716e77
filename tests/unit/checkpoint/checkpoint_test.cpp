#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sys/resource.h>

#include "catch.h"
#include "checkpoint/contents.h"
#include "checkpoint/files.h"
#include "checkpoint/folder.h"
#include "helpers.h"
#include "sanitized.h"

using namespace gptrain;
using namespace checkpoint_test;
namespace fs = std::filesystem;

namespace {

std::vector<Tensor> odd_tensors() {
  return {make_tensor("weight/m", {7, 13}), make_tensor("weight/v", {11}),       make_tensor("weight/s", {}),
          make_tensor("", {2, 1, 3}),       make_tensor("weight/e", {0, 4}),     make_tensor("weight/d4", {3, 1, 5, 2}),
          make_tensor("a@0,0", {3, 3}),     make_tensor("\xC3\xA9 \"q\"\n", {1})};
}

Parts whole_parts(const std::vector<Tensor>& tensors) {
  Parts parts;
  for (const Tensor& tensor : tensors) add_part(parts, tensor, whole(tensor));
  return parts;
}

Parts empty_parts(const std::vector<Tensor>& tensors) {
  Parts parts;
  for (const Tensor& tensor : tensors) add_empty_part(parts, tensor, whole(tensor));
  return parts;
}

// Saves a checkpoint with several rank files.
fs::path save_ranks(const fs::path& out, const std::vector<Parts>& ranks, int64_t num_tensors,
                    int64_t part_bytes = usual_part_bytes) {
  const fs::path folder = out / "checkpoints" / "step-00000009";
  create_folders(folder);
  StoredManifest stored{make_manifest(9), num_tensors, {}};
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto number = static_cast<int64_t>(rank);
    auto planned = plan_rank_files(number, ranks[rank].slices, part_bytes);
    for (FileRecord& file : write_rank_files(folder, number, ranks[rank].slices, part_bytes, NotFinite::allowed)) {
      REQUIRE(!planned.empty());
      CHECK(planned.front().name == file.name);
      CHECK(planned.front().bytes == file.bytes);
      CHECK(planned.front().slices_crc32c.size() == file.slices_crc32c.size());
      planned.erase(planned.begin());
      stored.files.push_back(std::move(file));
    }
    CHECK(planned.empty());
  }
  write_manifest(folder, stored);
  return folder;
}

}  // namespace

TEST_CASE("A checkpoint gives back every field and every bit", "[checkpoint]") {
  const TemporaryFolder out;
  const auto tensors = odd_tensors();
  const Parts saved = whole_parts(tensors);
  save_checkpoint(out.path() / "runs" / "new", make_manifest(120), saved.slices);
  const auto listed = list_checkpoints(out.path() / "runs" / "new");
  REQUIRE(listed.size() == 1);
  CHECK(listed[0].step == 120);
  CHECK(listed[0].path == out.path() / "runs/new/checkpoints/step-00000120");
  CHECK(folder_names(out.path() / "runs/new") == std::vector<std::string>{"step-00000120"});

  const Manifest expected = make_manifest(120);
  const Manifest manifest = read_manifest(listed[0].path);
  CHECK(manifest.progress.step == expected.progress.step);
  CHECK(manifest.progress.samples == expected.progress.samples);
  CHECK(manifest.progress.updates == expected.progress.updates);
  CHECK(manifest.progress.skipped == expected.progress.skipped);
  CHECK(manifest.progress.skipped_in_a_row == expected.progress.skipped_in_a_row);
  CHECK(manifest.seed == expected.seed);
  CHECK(manifest.world_size == expected.world_size);
  CHECK(manifest.config == expected.config);
  CHECK(manifest.build == expected.build);
  CHECK(manifest.algorithms == expected.algorithms);
  CHECK(manifest.amax_history == expected.amax_history);
  REQUIRE(manifest.loss_scale);
  CHECK(manifest.loss_scale->value == expected.loss_scale->value);
  CHECK(manifest.loss_scale->good_steps == expected.loss_scale->good_steps);
  CHECK(manifest.progress.losses.window == expected.progress.losses.window);
  REQUIRE(manifest.progress.losses.above.size() == 2);
  CHECK(std::isnan(manifest.progress.losses.above[0]));
  CHECK(manifest.progress.losses.above[1] == 1e300);
  CHECK(manifest.progress.rollbacks == expected.progress.rollbacks);
  CHECK(manifest.progress.left_out == expected.progress.left_out);

  verify_checkpoint(listed[0].path);
  Parts loaded = empty_parts(tensors);
  load_slices(listed[0].path, loaded.slices);
  CHECK(same_bits(saved, loaded));
}

TEST_CASE("A whole tensor is stored under its own name, a box under its offset", "[checkpoint]") {
  const TemporaryFolder out;
  const Tensor a = make_tensor("weight/a", {4, 6});
  const Tensor b = make_tensor("weight/b", {4});
  Parts parts;
  add_part(parts, a, {{0, 0}, {4, 2}});
  add_part(parts, a, {{0, 2}, {4, 4}});
  add_part(parts, b, whole(b));
  save_checkpoint(out.path(), make_manifest(5), parts.slices);
  const InputFile file(out.path() / "checkpoints/step-00000005/rank-00000.safetensors");
  const SafetensorsHeader header = read_safetensors_header(file);
  REQUIRE(header.tensors.size() == 3);
  CHECK(header.tensors[0].name == "weight/a@0,0");
  CHECK(header.tensors[1].name == "weight/a@0,2");
  CHECK(header.tensors[1].shape == std::vector<int64_t>{4, 4});
  CHECK(header.tensors[2].name == "weight/b");
  CHECK(header.metadata.at("weight/a@0,2") == R"({"global_shape":[4,6],"offset":[0,2],"tensor":"weight/a"})");
}

TEST_CASE("Any layout loads what any other saved, bit for bit", "[checkpoint]") {
  Random random(11);
  const auto tensors = odd_tensors();
  for (int round = 0; round < 25; ++round) {
    const TemporaryFolder out;
    std::vector<Parts> ranks(static_cast<size_t>(1 + random_below(random, 5)));
    for (const Tensor& tensor : tensors) {
      for (const Box& box : random_partition(random, tensor.shape, 6)) {
        add_part(ranks[static_cast<size_t>(random_below(random, static_cast<int64_t>(ranks.size())))], tensor, box);
      }
    }
    const auto path = save_ranks(out.path(), ranks, static_cast<int64_t>(tensors.size()));
    verify_checkpoint(path);
    Parts expected;
    Parts loaded;
    for (const Tensor& tensor : tensors) {
      for (const Box& box : random_partition(random, tensor.shape, 6)) {
        add_part(expected, tensor, box);
        add_empty_part(loaded, tensor, box);
      }
    }
    load_slices(path, loaded.slices);
    INFO("round " << round);
    REQUIRE(same_bits(expected, loaded));
  }
}

TEST_CASE("Numbers that are not finite are refused as a diverged state, and read where that is allowed",
          "[checkpoint]") {
  for (const float lost : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const TemporaryFolder out;
    Tensor tensor = make_tensor("exp_avg/m", {7, 13});
    tensor.data[17] = lost;
    Parts saved, loaded;
    add_part(saved, tensor, whole(tensor));
    add_empty_part(loaded, tensor, whole(tensor));
    const auto path = save_ranks(out.path(), {saved}, 1);
    for (const bool loads : {false, true}) {
      try {
        loads ? load_slices(path, loaded.slices) : verify_checkpoint(path);
        FAIL("nothing was thrown");
      } catch (const Error& error) {
        CHECK(error.code() == ExitCode::diverged);
        CHECK(lacking(error.what(), {path.string(),
                                     "holds a state that has diverged: 1 number of tensor \"exp_avg/m\" "
                                     "are not finite"}) == "");
      }
    }
    const std::vector<float> values = load_tensor(read_contents(path), "exp_avg/m", NotFinite::allowed);
    CHECK(std::memcmp(values.data(), tensor.data.data(), values.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("Flat shards (part of a row, rows, part of a row) load as other flat shards", "[checkpoint]") {
  const Tensor tensor = make_tensor("weight/m", {9, 7});
  for (const int64_t saved_ranks : {1, 2, 5, 8}) {
    const TemporaryFolder out;
    std::vector<Parts> ranks(static_cast<size_t>(saved_ranks));
    for (int64_t r = 0; r < saved_ranks; ++r) {
      for (const Box& box : flat_range(tensor.shape, 63 * r / saved_ranks, 63 * (r + 1) / saved_ranks)) {
        add_part(ranks[static_cast<size_t>(r)], tensor, box);
      }
    }
    const auto path = save_ranks(out.path(), ranks, 1);
    for (const int64_t loading_ranks : {1, 3, 4, 63}) {
      for (int64_t r = 0; r < loading_ranks; ++r) {
        Parts expected;
        Parts loaded;
        for (const Box& box : flat_range(tensor.shape, 63 * r / loading_ranks, 63 * (r + 1) / loading_ranks)) {
          add_part(expected, tensor, box);
          add_empty_part(loaded, tensor, box);
        }
        load_slices(path, loaded.slices);
        REQUIRE(same_bits(expected, loaded));
      }
    }
  }
}

TEST_CASE("What is more than a part goes to several files, and is read as ever", "[checkpoint]") {
  const Tensor wide = make_tensor("weight/wide", {3, 50}), tall = make_tensor("weight/tall", {40, 4});
  const Tensor flat = make_tensor("weight/flat", {33}), one = make_tensor("weight/one", {1});
  Parts saved;
  for (const Tensor& tensor : {wide, tall, flat, one}) add_part(saved, tensor, whole(tensor));
  constexpr int64_t usual = usual_part_bytes;
  for (const int64_t part_bytes : {usual, int64_t{800}, int64_t{400}, int64_t{100}, int64_t{12}}) {
    const TemporaryFolder out;
    const auto path = save_ranks(out.path(), {saved}, 4, part_bytes);
    INFO("parts of " << part_bytes);
    verify_checkpoint(path);
    Parts loaded;
    for (const Tensor& tensor : {wide, tall, flat, one}) add_empty_part(loaded, tensor, whole(tensor));
    load_slices(path, loaded.slices);
    CHECK(same_bits(saved, loaded));
    const Contents contents = read_contents(path);
    const auto& files = contents.stored.files;
    CHECK(files.front().name == (part_bytes == usual ? "rank-00000.safetensors" : "rank-00000-00000.safetensors"));
    std::vector<int64_t> bytes(files.size());
    for (const auto& [name, slices] : contents.tensors) {
      for (const Slice& slice : slices) bytes[slice.file] += slice.bytes();
    }
    for (const int64_t of_file : bytes) CHECK((of_file > 0 && of_file <= part_bytes));
    if (part_bytes == 800) CHECK(files.size() == 2);  // 600 bytes, and 640 + 132 + 4
  }
}

TEST_CASE("Slices that cannot be a checkpoint are refused, and nothing is left", "[checkpoint]") {
  const TemporaryFolder out;
  const Tensor tensor = make_tensor("weight/a", {4, 6});
  Parts overlapping;
  add_part(overlapping, tensor, {{0, 0}, {3, 6}});
  add_part(overlapping, tensor, {{2, 0}, {2, 6}});
  Parts outside;
  add_part(outside, tensor, whole(tensor));
  outside.slices[0].box.offset = {1, 0};
  Parts two_shapes;
  add_part(two_shapes, tensor, {{0, 0}, {1, 6}});
  add_part(two_shapes, tensor, {{1, 0}, {1, 6}});
  two_shapes.slices[1].global_shape = {5, 6};
  Parts bad_name;
  add_part(bad_name, make_tensor("\xFF", {1}), {{0}, {1}});
  const std::pair<const Parts*, std::string> cases[] = {
      {&overlapping, "slices of tensor \"weight/a\" overlap"},
      {&outside, "slice [4, 6] at [1, 0] does not lie in tensor \"weight/a\" of shape [4, 6]"},
      {&two_shapes, "slices of tensor \"weight/a\" give it two shapes, [4, 6] and [5, 6]"},
      {&bad_name, "not valid UTF-8"}};
  for (const auto& [parts, reason] : cases) {
    CHECK(lacking(error_of([&] { save_checkpoint(out.path(), make_manifest(5), parts->slices); }), {reason}) == "");
    CHECK(folder_names(out.path()).empty());
  }
  Manifest manifest = make_manifest(5);
  manifest.config = "\xFF";
  CHECK(lacking(error_of([&] { save_checkpoint(out.path(), manifest, {}); }), {"config", "not valid UTF-8"}) == "");
  manifest = make_manifest(5);
  manifest.progress.samples = -1;
  CHECK(lacking(error_of([&] { save_checkpoint(out.path(), manifest, {}); }), {"\"samples\" is -1"}) == "");
  CHECK(folder_names(out.path()).empty());
}

TEST_CASE("What the model asks for and the checkpoint does not hold is refused", "[checkpoint]") {
  const TemporaryFolder out;
  const Tensor a = make_tensor("weight/a", {4, 6});
  Parts parts;
  add_part(parts, a, {{0, 0}, {3, 6}});
  const auto path = save_ranks(out.path(), {parts}, 1);
  const auto loading = [&](const Tensor& tensor, const Box& box) {
    Parts wanted;
    add_empty_part(wanted, tensor, box);
    return error_of([&] { load_slices(path, wanted.slices); });
  };
  CHECK(loading(a, {{1, 1}, {2, 5}}) == "nothing was thrown");
  CHECK(lacking(loading(make_tensor("weight/b", {1}), {{0}, {1}}), {path.string(), "holds no tensor \"weight/b\""}) ==
        "");
  CHECK(lacking(loading(make_tensor("weight/a", {6, 4}), {{0, 0}, {1, 1}}),
                {path.string(), "tensor \"weight/a\" has shape [4, 6]", "but [6, 4] in this model"}) == "");
  CHECK(lacking(loading(a, whole(a)), {path.string(), "only 18 of the 24 elements asked of tensor \"weight/a\""}) ==
        "");
  CHECK(lacking(loading(a, {{3, 0}, {1, 6}}), {"only 0 of the 6 elements"}) == "");
  CHECK(lacking(error_of([&] { verify_checkpoint(path); }), {"only 18 of the 24 elements of tensor \"weight/a\""}) ==
        "");
}

TEST_CASE("An existing step is replaced, leftovers of a crashed save included", "[checkpoint]") {
  const TemporaryFolder out;
  save_step(out.path(), 3, 1);
  fs::create_directories(out.path() / "checkpoints/.tmp-step-00000003/deep");
  save_step(out.path(), 3, 2);
  CHECK(folder_names(out.path()) == std::vector<std::string>{"step-00000003"});
  CHECK(holds_step(out.path() / "checkpoints/step-00000003", 3, 2));
}

TEST_CASE("Folders named as steps are listed, oldest first, manifests or not", "[checkpoint]") {
  const TemporaryFolder out;
  CHECK(list_checkpoints(out.path()).empty());
  for (const int64_t step : {40, 5, 123456789}) save_step(out.path(), step);
  const fs::path folder = out.path() / "checkpoints";
  for (const char* other :
       {"step-00000001", ".tmp-step-00000002", "step-3", "step-00000004.old", "step--0000004", "x"}) {
    fs::create_directories(folder / other);
    if (std::strcmp(other, "step-00000001") != 0) write_file(folder / other / "manifest.json", "{}");
  }
  std::vector<int64_t> steps;
  for (const auto& info : list_checkpoints(out.path())) steps.push_back(info.step);
  CHECK(steps == std::vector<int64_t>{1, 5, 40, 123456789});

  const TemporaryFolder odd;
  write_file(odd.path() / "checkpoints", "a file");
  CHECK(lacking(error_of([&] { list_checkpoints(odd.path()); }), {"cannot read", "checkpoints"}) == "");
}

TEST_CASE("inspect_checkpoint prints the run's place and the tensors", "[checkpoint]") {
  const TemporaryFolder out;
  save_step(out.path(), 1200);
  const std::string text = inspect_checkpoint(out.path() / "checkpoints/step-00001200");
  CHECK(lacking(text, {"step         1,200 (1,080 updates, 120 skipped)", "samples      614,400",
                       "parameters   9,935\n", "seed         18364758544493064720", "rank-00000.safetensors, ",
                       "weight/b   [300, 33]  f32    1", "exp_avg/a  [5, 7]     f32    1"}) == "");
}

// Elements [first, first + rows) of a [rows, 5] tensor whose values are the indices, exact in bf16.
Slice rows_of(const char* name, int64_t first, std::vector<bf16>& data) {
  const auto rows = static_cast<int64_t>(data.size()) / 5;
  return {
      .name = name, .global_shape = {20, 5}, .box = {{first, 0}, {rows, 5}}, .data = data.data(), .dtype = DType::bf16};
}

TEST_CASE("Tensors in bf16 are loaded as they are, or as f32, and f32 is never rounded", "[checkpoint]") {
  const TemporaryFolder out;
  std::vector<bf16> upper(60), lower(40);
  for (size_t i = 0; i < 100; ++i) (i < 60 ? upper[i] : lower[i - 60]) = to_bf16(static_cast<float>(i));
  std::vector<float> moments(100, 1.25F);
  save_checkpoint(out.path(), make_manifest(3),
                  {rows_of("weight/m", 0, upper),
                   rows_of("weight/m", 12, lower),
                   {.name = "exp_avg/m", .global_shape = {20, 5}, .box = {{0, 0}, {20, 5}}, .data = moments.data()}});
  const fs::path saved = list_checkpoints(out.path()).front().path;
  CHECK_NOTHROW(verify_checkpoint(saved));
  CHECK(lacking(inspect_checkpoint(saved), {"weight/m   [20, 5]  bf16   2", "exp_avg/m  [20, 5]  f32    1"}) == "");

  // Rows 10 to 14 lie in both boxes; one load fills slices of either type.
  std::vector<bf16> narrow(25);
  std::vector<float> wide(25);
  load_slices(saved, {rows_of("weight/m", 10, narrow),
                      {.name = "weight/m", .global_shape = {20, 5}, .box = {{10, 0}, {5, 5}}, .data = wide.data()}});
  for (size_t i = 0; i < 25; ++i) {
    CHECK(to_float(narrow[i]) == static_cast<float>(50 + i));
    CHECK(wide[i] == static_cast<float>(50 + i));
  }
  CHECK(lacking(error_of([&] { load_slices(saved, {rows_of("exp_avg/m", 0, narrow)}); }),
                {"tensor \"exp_avg/m\" is f32 in ", "but bf16 in this run, which would round it"}) == "");
}

TEST_CASE("The boxes of a tensor have one dtype", "[checkpoint]") {
  const TemporaryFolder out;
  std::vector<bf16> upper(60);
  std::vector<float> lower(40);
  save_checkpoint(out.path(), make_manifest(3),
                  {rows_of("weight/m", 0, upper),
                   {.name = "weight/m", .global_shape = {20, 5}, .box = {{12, 0}, {8, 5}}, .data = lower.data()}});
  CHECK(lacking(error_of([&] { verify_checkpoint(list_checkpoints(out.path()).front().path); }),
                {"is damaged: slice \"weight/m@0,0\" is of a tensor of bf16, another slice of it of f32"}) == "");
}

TEST_CASE("Saving and loading take only a few MiB beside the tensors", "[checkpoint]") {
  const std::string result = in_child([] {
    const TemporaryFolder out;
    constexpr int64_t elements = int64_t{12} << 20;  // 48 MiB
    std::vector<float> data(static_cast<size_t>(elements), 1.25F);
    const std::vector<Slice> slices = {
        {.name = "weight/a", .global_shape = {elements}, .box = {{0}, {elements}}, .data = data.data()}};
    const auto peak_kib = [] {
      rusage usage{};
      ::getrusage(RUSAGE_SELF, &usage);
      return usage.ru_maxrss;
    };
    const long before = peak_kib();
    save_checkpoint(out.path(), make_manifest(5), slices);
    std::fill(data.begin(), data.end(), 0.0F);
    load_slices(out.path() / "checkpoints/step-00000005", slices);
    const bool same = std::all_of(data.begin(), data.end(), [](float value) { return value == 1.25F; });
    const long grown = peak_kib() - before;
    // A sanitizer's allocator keeps freed memory for a while.
    const long most_kib = (under_address_sanitizer() ? 16 : 8) * 1024;
    return same && grown < most_kib ? std::string("ok") : fmt::format("same {}, grown by {} KiB", same, grown);
  });
  CHECK(result == "ok");
}
