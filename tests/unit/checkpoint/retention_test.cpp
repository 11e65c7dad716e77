#include <cmath>
#include <sys/types.h>
#include <unistd.h>

#include "catch.h"
#include "checkpoint/checkpoint.h"
#include "helpers.h"

using namespace gptrain;
using namespace checkpoint_test;
namespace fs = std::filesystem;

namespace {

std::vector<int64_t> kept(const fs::path& out, int64_t keep_last, int64_t keep_every) {
  CHECK(apply_retention(out, keep_last, keep_every) == "");
  std::vector<int64_t> steps;
  for (const auto& info : list_checkpoints(out)) steps.push_back(info.step);
  // No other folder is left, such as a temporary one.
  CHECK(folder_names(out).size() == steps.size());
  return steps;
}

}  // namespace

TEST_CASE("Retention keeps the last k and every multiple of N, and nothing else", "[retention]") {
  const TemporaryFolder out;
  for (const int64_t step : {5, 10, 15, 20, 25, 30, 35}) save_checkpoint(out.path(), make_manifest(step), {});
  CHECK(kept(out.path(), 7, 0) == std::vector<int64_t>{5, 10, 15, 20, 25, 30, 35});
  CHECK(kept(out.path(), 5, 10) == std::vector<int64_t>{10, 15, 20, 25, 30, 35});
  CHECK(kept(out.path(), 2, 10) == std::vector<int64_t>{10, 20, 30, 35});
  CHECK(kept(out.path(), 1, 15) == std::vector<int64_t>{30, 35});
  CHECK(kept(out.path(), 1, 0) == std::vector<int64_t>{35});
  CHECK(kept(out.path(), 9, 0) == std::vector<int64_t>{35});
  verify_checkpoint(out.path() / "checkpoints/step-00000035");
}

TEST_CASE("Retention keeps the last checkpoint before the loss rose until it has fallen again", "[retention]") {
  const TemporaryFolder out;
  const auto save = [&](int64_t step, double loss) {
    Manifest manifest = make_manifest(step);
    manifest.progress.loss = loss;
    save_checkpoint(out.path(), manifest, {});
  };
  save(5, 4);
  save(10, 3.5);
  for (const int64_t step : {15, 20, 25, 30}) save(step, step == 25 ? std::nan("") : 8.5e6);
  CHECK(kept(out.path(), 2, 0) == std::vector<int64_t>{10, 25, 30});
  save(35, 9);
  CHECK(kept(out.path(), 1, 0) == std::vector<int64_t>{10, 35});
  save(40, 3.4);
  save(45, 3.6);
  CHECK(kept(out.path(), 1, 0) == std::vector<int64_t>{45});
}

TEST_CASE("Damaged checkpoints push out no sound one", "[retention]") {
  const TemporaryFolder out;
  for (const int64_t step : {5, 10, 15, 20, 25}) save_step(out.path(), step);
  const fs::path folder = out.path() / "checkpoints";
  const fs::path manifest = folder / "step-00000025/manifest.json",
                 data = folder / "step-00000020/rank-00000.safetensors";
  write_file(manifest, read_file(manifest).substr(10));
  write_file(data, read_file(data).substr(1));
  CHECK(is_sound_checkpoint(folder / "step-00000015"));
  CHECK(!is_sound_checkpoint(folder / "step-00000020"));
  CHECK(!is_sound_checkpoint(folder / "step-00000025"));
  CHECK(kept(out.path(), 2, 0) == std::vector<int64_t>{10, 15, 20, 25});
}

TEST_CASE("What has no readable manifest neither counts nor goes", "[retention]") {
  const TemporaryFolder out;
  for (const int64_t step : {5, 10, 15, 20}) save_step(out.path(), step);
  for (const char* damaged : {"step-00000005", "step-00000015"})
    fs::remove(out.path() / "checkpoints" / damaged / "manifest.json");
  CHECK(kept(out.path(), 1, 0) == std::vector<int64_t>{5, 15, 20});
}

TEST_CASE("Retention removes temporary folders and leaves everything else alone", "[retention]") {
  const TemporaryFolder out;
  CHECK(apply_retention(out.path(), 1, 0) == "");
  save_step(out.path(), 5);
  fs::create_directories(out.path() / "checkpoints/.tmp-step-00000006/deep");
  write_file(out.path() / "checkpoints/.tmp-step-00000006/rank-00000.safetensors", "half");
  fs::create_directories(out.path() / "checkpoints/best");
  CHECK(apply_retention(out.path(), 1, 0) == "");
  CHECK(folder_names(out.path()) == std::vector<std::string>{"best", "step-00000005"});
}

TEST_CASE("A folder that cannot be deleted gives a warning, not an error", "[retention]") {
  const std::string result = in_child([]() -> std::string {
    // The superuser may delete anything.
    if (::getuid() == 0 && ::setuid(65534) != 0) return "cannot drop the superuser's rights";
    const TemporaryFolder out;
    for (const int64_t step : {1, 2}) save_step(out.path(), step);
    const fs::path folder = out.path() / "checkpoints";
    fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
    std::string warning = apply_retention(out.path(), 1, 0);
    fs::permissions(folder, fs::perms::owner_all);
    verify_checkpoint(folder / "step-00000001");
    return warning;
  });
  CHECK(lacking(result, {"cannot remove", "step-00000001: Permission denied"}) == "");
}
