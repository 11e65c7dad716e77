// The built-in profiles, and messages about files that are not profiles.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "catch.h"
#include "machine/profiles.h"

namespace gptrain::test_profiles {
namespace {

TEST_CASE("named targets") {
  const Target a100 = find_target("A100-80G");
  CHECK(a100.name == "a100-80g");
  CHECK(a100.kind == Target::Kind::gpu);
  CHECK(a100.memory_bytes == 80'000'000'000);
  CHECK(a100.bf16_flops == 312e12);
  CHECK(a100.bytes_per_second == 2039e9);
  CHECK(a100.ranks_per_node == 8);
  for (const std::string& name : device_names()) {
    INFO(name);
    const Target target = find_target(name);
    CHECK(target.name == name);
    CHECK(target.bf16_flops > target.f32_flops);
    CHECK(target.f32_flops > 0);
    CHECK(target.fp8_products == (target.fp8_flops > target.bf16_flops));
    CHECK(target.fp8_products == (name.starts_with("h100") || name == "h200" || name == "b200"));
    CHECK(target.bf16_products == (name != "v100-32g" && name != "rtx-2080-ti"));
  }
  CHECK(find_target("h100").memory_bytes == find_target("h100-sxm").memory_bytes);
  CHECK(find_target("h100-pcie").bf16_flops < find_target("h100").bf16_flops);
}

TEST_CASE("every profile in configs is carried, and every cluster that a device names") {
  const std::filesystem::path configs = std::filesystem::path(GPTRAIN_SOURCE_ROOT) / "configs";
  const auto names_in = [&](const char* folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(configs / folder))
      names.push_back(entry.path().stem());
    return names;
  };
  const std::vector<std::string> devices = device_names(), clusters = cluster_names();
  for (const std::string& name : names_in("devices")) {
    CHECK(std::count(devices.begin(), devices.end(), name) == 1);
    CHECK(find_device((configs / "devices" / (name + ".json")).string()).name == name);
  }
  for (const std::string& name : names_in("clusters")) {
    CHECK(std::count(clusters.begin(), clusters.end(), name) == 1);
    CHECK(find_cluster(name).name == name);
  }
  for (const std::string& name : devices) CHECK(find_cluster(find_device(name).cluster).gpus_per_node == 8);
}

TEST_CASE("an unknown target names the nearest and all valid ones") {
  try {
    find_target("a100-80gb");
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    CHECK(std::string(error.what()) ==
          "unknown target \"a100-80gb\" (did you mean a100-80g?): valid targets are v100-32g, rtx-2080-ti, a100-40g, "
          "a100-80g, h100-pcie, h100-sxm, h100, h200, b200, and paths of files");
  }
}

class File {
 public:
  explicit File(const std::string& text) { std::ofstream(path()) << text; }
  ~File() { std::filesystem::remove(path()); }
  static std::string path() { return "./profile-of-a-test.json"; }
};

std::string refusal(const std::string& text) {
  const File file(text);
  try {
    find_device(File::path());
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string text_of_a100() {
  for (const BuiltInProfile& profile : built_in_devices())
    if (profile.name == "a100-80g") return std::string(profile.text);
  return "";
}

TEST_CASE("a profile's faults are told together, each with its key") {
  CHECK(has(refusal("[1]"), "no JSON object"));
  std::string text = text_of_a100();
  CHECK(refusal(text).empty());
  const auto replace = [&](const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
  };
  replace("\"compute_capability\": [8, \"data sheet: NVIDIA A100 80GB SXM\"]", "\"compute_capability\": 8");
  replace("\"multiprocessors\": [108, \"data sheet: ", "\"multiprocessors\": [108, \"a guess: ");
  replace("\"launch_seconds\": [3e-06", "\"launch_seconds\": [-3e-06");
  replace("\"sustained\": [0.7, ", "\"sustained\": [1.7, ");
  replace("\"half_length\"", "\"half_lenght\"");
  const std::string faults = refusal(text);
  CHECK(std::count(faults.begin(), faults.end(), '\n') == 5);
  for (const char* fault : {"compute_capability: must be [number", "multiprocessors: its source must begin with",
                            "launch_seconds: must not be negative", "memory.sustained: must be at most 1",
                            "attention.half_length: is missing", "attention.half_lenght: unknown key"})
    CHECK(has(faults, fault));
}

TEST_CASE("a key that is given twice is a fault, in profiles as in configs") {
  const std::string text = text_of_a100();
  const auto begun_with = [&](const std::string& members) {
    return refusal("{" + members + text.substr(text.find('{') + 1));
  };
  CHECK(begun_with("// a comment\n").empty());
  CHECK(has(begun_with("\"name\": \"mine\","), "json: name: is given twice"));
  CHECK(has(begun_with("\"memory\": {\"bytes\": [1, \"measured\"]},"), "json: memory: is given twice"));
  CHECK(has(refusal("{\"name\": 1,\n}"), "json:2:1: "));
  std::string cluster;
  for (const BuiltInProfile& profile : built_in_clusters())
    if (profile.name == "dgx-a100") cluster = profile.text;
  const File file("{\"name\": \"mine\"," + cluster.substr(cluster.find('{') + 1));
  CHECK_THROWS_AS(find_cluster(File::path()), Error);
}

TEST_CASE("counts of a profile are whole, and figures within what amounts can hold") {
  const std::string text = text_of_a100();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    return refusal(changed.replace(at, from.size(), to));
  };
  CHECK(has(with("[108, ", "[0.5, "), "multiprocessors: must be a whole number"));
  CHECK(has(with("[3e-06, ", "[1e-300, "), "launch_seconds: must be from 1e-12 to 1e+18"));
  CHECK(has(with("[3e-06, ", "[1e300, "), "launch_seconds: must be from 1e-12 to 1e+18"));
}

}  // namespace
}  // namespace gptrain::test_profiles
