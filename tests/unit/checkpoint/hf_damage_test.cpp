// Damaged files in folders of the transformers library: import refuses them with the file's name and leaves nothing
// behind, or the imported model is sound.
#include <algorithm>
#include <cstring>
#include <map>

#include "catch.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_check.h"
#include "hf_folder.h"
#include "some_cases.h"

using namespace gptrain;
using namespace checkpoint_test;
namespace fs = std::filesystem;

namespace {

// A damaged file.
struct Mutant {
  std::string bytes;
  bool must_be_refused;  // whatever else its bytes contain
};

std::string header_of(const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  return file.substr(sizeof length, length);
}

std::string with_header(const std::string& file, const std::string& header) {
  const uint64_t length = header.size();
  std::string changed(sizeof length, '\0');
  std::memcpy(changed.data(), &length, sizeof length);
  return changed + header + file.substr(sizeof length + header_of(file).size());
}

// Changes a tensor's offsets or shape: they overlap, leave a gap, exceed the file or do not match the shape.
Mutant lying_header(Random& random, const std::string& sound) {
  HfJson header = HfJson::parse(header_of(sound));
  std::vector<std::string> names;
  for (const auto& [name, value] : header.items())
    if (name != "__metadata__") names.push_back(name);
  const std::string name = names[static_cast<size_t>(random_below(random, std::ssize(names)))];
  const std::vector<HfJson> numbers = {0,  1,   4,   1 << 20, INT64_MAX,         UINT64_MAX,
                                       -4, 2.5, "8", nullptr, HfJson::array({1})};
  const HfJson number = numbers[static_cast<size_t>(random_below(random, std::ssize(numbers)))];
  HfJson& offset = header[name][random_below(random, 3) > 0 ? "data_offsets" : "shape"];
  HfJson& changed = offset[static_cast<size_t>(random_below(random, std::ssize(offset)))];
  const bool same = changed == number;
  changed = number;
  return {with_header(sound, header.dump()), !same};
}

Mutant mutant_of(Random& random, const fs::path& path, const std::string& sound) {
  const bool is_weights = path.extension() == ".safetensors";
  const auto at = static_cast<size_t>(random_below(random, std::ssize(sound)));
  std::string bytes = sound;
  switch (random_below(random, is_weights ? 7 : 5)) {
    case 0:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random_below(random, 8)));
      return {bytes, is_weights && at < 8};
    case 1:
      bytes.resize(at);
      return {bytes, at + 1 < sound.size() || sound.back() != '\n'};
    case 2:
      bytes.erase(at, 1 + static_cast<size_t>(random_below(random, 40)));
      return {bytes, is_weights};
    case 3:
      bytes.insert(at, sound.substr(static_cast<size_t>(random_below(random, std::ssize(sound))), 50));
      return {bytes, is_weights};
    case 4: {
      // A name that leads out of the folder.
      const size_t name = bytes.find(is_weights ? "transformer" : ".safetensors");
      if (name == std::string::npos) return {bytes.substr(0, at / 2), true};
      bytes.insert(is_weights ? name : bytes.rfind('"', name) + 1, "../");
      if (is_weights) bytes = with_header(sound, bytes.substr(8, header_of(sound).size() + 3));
      return {bytes, true};
    }
    case 5: {
      const uint64_t lengths[] = {0, 7, sound.size(), sound.size() - 8, uint64_t{1} << 40, UINT64_MAX, INT64_MAX};
      const uint64_t length = lengths[random_below(random, std::ssize(lengths))];
      std::memcpy(bytes.data(), &length, sizeof length);
      return {bytes, true};
    }
    default:
      return lying_header(random, sound);
  }
}

}  // namespace

TEST_CASE("A damaged folder of Hugging Face is refused with the file's name, or what is imported is sound",
          "[hf damage]") {
  HfFolder folder;
  folder.shard();
  std::map<fs::path, std::string> sound;
  for (const char* name : {"a.safetensors", "b.safetensors", "config.json"})
    sound[folder.file(name)] = read_file(folder.file(name));
  sound[folder.file(index_name)] = read_file(folder.file(index_name));
  const int mutants = gptrain::testing::some_cases() ? 200 : 2000;
  int refused = 0;
  Random random(1);
  for (int number = 0; number < mutants; ++number) {
    const auto& [path, bytes] = *std::next(sound.begin(), number % std::ssize(sound));
    const Mutant mutant = mutant_of(random, path, bytes);
    write_file(path, mutant.bytes);
    INFO("mutant " << number << " of " << path.filename());
    const fs::path out = folder.model().folder() / "imported";
    const std::string why = error_of([&] { import_hf(folder.path(), out, "fp32"); });
    if (why == "nothing was thrown") {
      CAPTURE(mutant.bytes);
      REQUIRE((!mutant.must_be_refused || mutant.bytes == bytes));
      const fs::path checkpoint = list_checkpoints(out).back().path;
      verify_checkpoint(checkpoint);
      check_model(checkpoint);
      fs::remove_all(out);
    } else {
      ++refused;
      // The message names the damaged file, also if another file's content revealed the damage.
      REQUIRE(lacking(why, {path.filename().string()}) == "");
      REQUIRE(!fs::exists(out));
    }
    write_file(path, bytes);
  }
  CHECK(refused > mutants / 2);
  CHECK(error_of([&] { import_hf(folder.path(), folder.model().folder() / "imported", "fp32"); }) ==
        "nothing was thrown");
}
