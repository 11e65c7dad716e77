// The built-in profiles, and messages about files that are not profiles.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "machine/profiles.h"
#include "unit/named_target.h"

namespace gptrain::test_profiles {

using testing::find_target;

namespace {

std::vector<std::string> names_of(const std::vector<BuiltInProfile>& profiles) {
  std::vector<std::string> names;
  for (const BuiltInProfile& profile : profiles) names.emplace_back(profile.name);
  return names;
}

TEST_CASE("named targets") {
  const Target a100 = find_target("A100-80G");
  CHECK(a100.name == "a100-80g");
  CHECK(a100.kind == Target::Kind::gpu);
  CHECK(a100.memory_bytes == 84'975'927'951 - outside_plans_bytes);
  CHECK(a100.host_bytes == 1'000'000'000'000 - outside_plans_bytes);
  CHECK(a100.bf16_flops == 312e12);
  CHECK(a100.bytes_per_second == 2039e9);
  CHECK(a100.ranks_per_node == 8);
  for (const std::string& name : names_of(built_in_devices())) {
    INFO(name);
    const Target target = find_target(name);
    CHECK(target.name == name);
    CHECK(target.host_bytes > 0);
    CHECK(target.bf16_flops > target.f32_flops);
    CHECK(target.f32_flops > 0);
    CHECK(target.fp8_products == (target.fp8_flops > target.bf16_flops));
    CHECK(target.fp8_products == (target.compute_capability >= 8.9));
    CHECK(target.bf16_products == (!name.starts_with("v100") && name != "rtx-2080-ti"));
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
  const std::vector<std::string> devices = names_of(built_in_devices()), clusters = names_of(built_in_clusters());
  for (const std::string& name : names_in("devices")) {
    CHECK(std::count(devices.begin(), devices.end(), name) == 1);
    CHECK(find_device((configs / "devices" / (name + ".json")).string()).name == name);
  }
  for (const std::string& name : names_in("clusters")) {
    CHECK(std::count(clusters.begin(), clusters.end(), name) == 1);
    CHECK(find_cluster(name).name == name);
  }
  for (const std::string& name : devices)
    CHECK(find_cluster(find_device(name).cluster).gpus_per_node == (name == "gh200" ? 1 : 8));
  for (const std::string& name : clusters) CHECK(find_cluster(name).host_memory_bytes > 0);
}

// Least memory of cards that PyTorch names in public reports, in GiB.
struct Reported {
  const char* device;
  double gib;
};

TEST_CASE("memory of a named device is what drivers report of it, less what runs on the card reserve") {
  for (const Reported& reported :
       {Reported{"a100-80g", 79.14}, Reported{"a100-40g", 39.45}, Reported{"v100-32g", 31.74},
        Reported{"v100-16g", 15.78}, Reported{"rtx-2080-ti", 10.76}, Reported{"rtx-3090", 23.70},
        Reported{"rtx-4090", 23.61}, Reported{"rtx-5090", 31.36}, Reported{"a10", 22.06}, Reported{"l4", 22.03},
        Reported{"l40s", 44.42}, Reported{"a6000", 47.54}, Reported{"h100-sxm", 79.11}, Reported{"h100-nvl", 93.00},
        Reported{"gh200", 94.88}, Reported{"h200", 139.72}, Reported{"b200", 178.35}}) {
    INFO(reported.device);
    const auto bytes = static_cast<double>(find_target(reported.device).memory_bytes + outside_plans_bytes);
    CHECK(bytes / 1073741824 == Approx(reported.gib).margin(1e-6));
    CHECK(find_device(reported.device).memory_bytes / 1073741824 == Approx(reported.gib).margin(1e-6));
  }
}

TEST_CASE("GPUs of AMD are refused by name") {
  for (const char* name : {"mi300x", "MI250", "amd-mi325x", "radeon-pro-w7900", "rx-7900-xtx", "instinct"}) {
    INFO(name);
    try {
      find_device(name);
      FAIL("not refused");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::usage);
      CHECK(std::string(error.what()) ==
            "--target " + std::string(name) + ": is a GPU of AMD, and gptrain runs on GPUs of NVIDIA only");
    }
  }
}

TEST_CASE("an unknown target names the nearest and all valid ones") {
  try {
    find_target("a100-80gb");
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    CHECK(std::string(error.what()) ==
          "unknown target \"a100-80gb\" (did you mean a100-80g?): valid targets are v100-16g, v100-32g, rtx-2080-ti, "
          "rtx-3090, rtx-4090, rtx-5090, rtx-a6000, a6000, a10, l4, l40s, a100-40g, a100-80g, h100-pcie, h100-nvl, "
          "h100-sxm, h100, gh200, h200, b200, or give the path of a profile");
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
