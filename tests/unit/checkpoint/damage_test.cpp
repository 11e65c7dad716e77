#include <fstream>

#include "base/crc32c.h"
#include "catch.h"
#include "checkpoint/checkpoint.h"
#include "helpers.h"

using namespace gptrain;
using namespace checkpoint_test;
namespace fs = std::filesystem;

namespace {

// A run of two small checkpoints, of which the newer is damaged.
class DamagedRun {
 public:
  DamagedRun() {
    for (const int64_t step : {10, 20}) {
      Parts parts;
      const Tensor tensor = make_tensor("weight/a", {3, 4}, static_cast<uint32_t>(step));
      add_part(parts, tensor, {{0, 0}, {1, 4}});
      add_part(parts, tensor, {{1, 0}, {2, 4}});
      save_checkpoint(out_.path(), make_manifest(step), parts.slices);
    }
  }
  fs::path older() const { return out_.path() / "checkpoints/step-00000010"; }
  fs::path newest() const { return out_.path() / "checkpoints/step-00000020"; }
  fs::path tensors() const { return newest() / "rank-00000.safetensors"; }
  fs::path manifest() const { return newest() / "manifest.json"; }

  std::string verify() const {
    return error_of([&] { verify_checkpoint(newest()); });
  }
  std::string load() const {
    Parts wanted;
    const Tensor tensor = make_tensor("weight/a", {3, 4});
    add_empty_part(wanted, tensor, whole(tensor));
    return error_of([&] { load_slices(newest(), wanted.slices); });
  }

 private:
  TemporaryFolder out_;
};

// Writes in place: rewriting the file for every byte would take seconds.
void put_byte(const fs::path& file, size_t at, char byte) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(static_cast<std::streamoff>(at)).put(byte);
}

// Returns the manifest with `from` replaced by `to` and the checksum updated.
std::string edited(const std::string& manifest, const std::string& from, const std::string& to) {
  const std::string tail_start = ",\n  \"crc32c\": \"";
  std::string body = manifest.substr(0, manifest.rfind(tail_start));
  body.replace(body.find(from), from.size(), to);
  return body + tail_start + fmt::format("{:08x}", crc32c_table(body.data(), body.size())) + "\"\n}\n";
}

}  // namespace

TEST_CASE("A flipped bit in any byte of any file is found, and named with the way out", "[damage]") {
  const DamagedRun run;
  CHECK(run.verify() == "nothing was thrown");
  CHECK(run.load() == "nothing was thrown");
  for (const fs::path& file : {run.tensors(), run.manifest()}) {
    const std::string sound = read_file(file);
    for (size_t i = 0; i < sound.size(); ++i) {
      put_byte(file, i, static_cast<char>(sound[i] ^ (1 << (i % 8))));
      INFO("byte " << i << " of " << file.filename());
      REQUIRE(lacking(run.verify(), {file.string(), "the checkpoint before it: " + run.older().string()}) == "");
      REQUIRE(lacking(run.load(), {file.string(), "the checkpoint before it: " + run.older().string()}) == "");
      put_byte(file, i, sound[i]);
    }
  }
}

TEST_CASE("A file cut or grown at any place is found", "[damage]") {
  const DamagedRun run;
  for (const fs::path& file : {run.tensors(), run.manifest()}) {
    const std::string sound = read_file(file);
    for (size_t length = sound.size(); length-- > 0;) {
      fs::resize_file(file, length);
      INFO(length << " bytes of " << file.filename());
      REQUIRE(lacking(run.verify(), {file.string()}) == "");
      REQUIRE(lacking(error_of([&] { read_manifest(run.newest()); }), {file.string()}) == "");
    }
    write_file(file, sound + "\n");
    CHECK(lacking(run.verify(), {file.string()}) == "");
    write_file(file, sound);
  }
}

TEST_CASE("Missing and swapped files are found", "[damage]") {
  const DamagedRun run;
  const auto swap_in = [&](const char* name) {
    fs::copy_file(run.older() / name, run.newest() / name, fs::copy_options::overwrite_existing);
  };
  SECTION("tensors missing") {
    fs::remove(run.tensors());
    CHECK(lacking(run.verify(), {"cannot open " + run.tensors().string() + ": No such file", run.older().string()}) ==
          "");
  }
  SECTION("manifest missing") {
    fs::remove(run.manifest());
    CHECK(lacking(run.verify(), {run.newest().string(), "is not a complete checkpoint: it has no manifest.json"}) ==
          "");
  }
  SECTION("a folder in place of the tensors") {
    fs::remove(run.tensors());
    fs::create_directory(run.tensors());
    CHECK(lacking(run.verify(), {run.tensors().string(), "is not a regular file"}) == "");
  }
  SECTION("tensors of the other step: same size, same header") {
    swap_in("rank-00000.safetensors");
    CHECK(lacking(run.verify(), {run.tensors().string(), "the data of slice \"weight/a@0,0\"", "checksum"}) == "");
    CHECK(lacking(run.load(), {run.tensors().string(), "checksum"}) == "");
  }
  SECTION("manifest of the other step") {
    swap_in("manifest.json");
    CHECK(lacking(run.verify(), {run.manifest().string(), "is of step 10, but its folder is named step-00000020"}) ==
          "");
  }
}

TEST_CASE("The way out names the newest sound checkpoint before the damaged one, if there is one", "[damage]") {
  const TemporaryFolder out;
  for (const int64_t step : {1, 2, 3, 4}) save_step(out.path(), step);
  const fs::path folder = out.path() / "checkpoints";
  for (const char* step : {"step-00000002", "step-00000003"}) write_file(folder / step / "manifest.json", "{}");
  const auto reading = [](const fs::path& path) { return error_of([&] { read_manifest(path); }); };
  CHECK(lacking(reading(folder / "step-00000003/"),
                {"the checkpoint before it: " + (folder / "step-00000001").string()}) == "");
  write_file(folder / "step-00000001/manifest.json", "{}");
  CHECK(lacking(reading(folder / "step-00000001"), {"there is no older checkpoint in this run"}) == "");
  CHECK(lacking(reading(folder / "step-00000003"), {"there is no older checkpoint in this run"}) == "");
  // Names the run's folder instead of a checkpoint's.
  for (const fs::path& run : {out.path(), folder}) {
    CHECK(lacking(reading(run), {"not a complete checkpoint",
                                 "the newest checkpoint in it: " + (folder / "step-00000004").string()}) == "");
  }
  CHECK(lacking(reading(out.path() / "nowhere"), {"nowhere is not a complete checkpoint"}) == "");
}

TEST_CASE("A manifest with a matching checksum but wrong content is refused field by field", "[damage]") {
  const DamagedRun run;
  const std::string sound = read_file(run.manifest());
  struct Case {
    std::string from;
    std::string to;
    std::string reason;
  };
  const std::string crc = sound.substr(sound.find("\"header_crc32c\": \"") + 18, 8);
  const Case cases[] = {
      {"\"format\": \"gptrain checkpoint\"", "\"format\": \"other\"", "\"format\" is not \"gptrain checkpoint\""},
      {"\"version\": 1", "\"version\": 2", "format version 2; this program reads version 1"},
      {"\"step\": 20", "\"step\": -20", "\"step\" is -20, which is not a count"},
      {"\"samples\": 10240", "\"samples\": 1e4", "\"samples\" is 10000.0, which is not a count"},
      {"\"updates\"", "\"update\"", "\"updates\" is missing"},
      {"\"seed\": 18364758544493064720", "\"seed\": \"1\"", "\"seed\" is not a number"},
      {"\"value\": 4096", "\"value\": 4097", "\"loss_scale\" is 4097, which is not a power of two"},
      {"\"good_steps\": 17", "\"good_steps\": -1", "\"good_steps\" is -1, which is not a count"},
      {"\"amax_history\": \"", "\"amax_history\": \"?", "\"amax_history\" is not base64"},
      {"\"build\": \"0.1.0\"", "\"build\": 1", "\"build\" is not a text"},
      {"\"tensors\": 1", "\"tensors\": 2", "hold 1 tensors, its manifest says 2"},
      {"\"files\": [", "\"files\": 3, \"other\": [", "\"files\" is not a list"},
      {"\"files\": [", "\"files\": [3, ", "\"name\" is missing"},
      {"rank-00000.safetensors", "../rank-00000.safetensors", "not the name of a file in the checkpoint's folder"},
      {"rank-00000.safetensors", "rank-00001.safetensors", "rank-00001.safetensors: No such file"},
      {"\"" + crc, "\"0x" + crc.substr(2), "which is not eight hexadecimal digits"},
      {"\"" + crc, "\"" + std::string(crc[0] == '0' ? "1" : "0") + crc.substr(1),
       "its header does not have the checksum"},
      {"\"weight/a@1,0\"", "\"weight/b@1,0\"", "the manifest does not list slice \"weight/a@1,0\""},
      {"\"weight/a@1,0\"", "\"x\": \"00000000\", \"weight/a@1,0\"", "it holds 2 slices, the manifest lists 3"},
      {"\"slices\": {", "\"slices\": 1, \"other\": {", "\"slices\" of file \"rank-00000.safetensors\" is not an"},
  };
  for (const Case& c : cases) {
    REQUIRE(sound.find(c.from) != std::string::npos);
    write_file(run.manifest(), edited(sound, c.from, c.to));
    INFO(c.from << " -> " << c.to);
    CHECK(lacking(run.verify(), {run.newest().string(), c.reason}) == "");
  }
}
