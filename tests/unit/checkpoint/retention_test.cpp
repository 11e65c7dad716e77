#include <cmath>
#include <optional>
#include <sys/types.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "catch.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/losses.h"
#include "checkpoint/manifest.h"
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

TEST_CASE("Retention keeps the last checkpoint before the loss rose beside those that are kept for good",
          "[retention]") {
  const auto save = [](const fs::path& out, int64_t step, double loss) {
    Manifest manifest = make_manifest(step);
    manifest.progress.loss = loss;
    save_checkpoint(out, manifest, {});
  };
  // The newest two are kept for good as well, or one of them.
  const TemporaryFolder risen;
  for (const auto& [step, loss] : {std::pair{10, 2.0}, {20, 8.0}, {30, 8.0}}) save(risen.path(), step, loss);
  CHECK(kept(risen.path(), 2, 20) == std::vector<int64_t>{10, 20, 30});
  const TemporaryFolder low;
  for (const auto& [step, loss] : {std::pair{20, 2.0}, {30, 2.1}, {40, 8.0}}) save(low.path(), step, loss);
  CHECK(kept(low.path(), 1, 20) == std::vector<int64_t>{20, 30, 40});
  save(low.path(), 50, 2.2);
  CHECK(kept(low.path(), 1, 20) == std::vector<int64_t>{20, 40, 50});
}

TEST_CASE("A loss that rises slowly does not push out the last checkpoint before it rose", "[retention]") {
  const TemporaryFolder out;
  LowestLoss lowest;
  const auto save = [&](int64_t step, double loss) {
    Manifest manifest = make_manifest(step);
    manifest.progress.loss = loss;
    manifest.progress.lowest_loss = lowest.add(manifest.progress, {});
    save_checkpoint(out.path(), manifest, {});
    return kept(out.path(), 1, 0);
  };
  CHECK(save(5, 2) == std::vector<int64_t>{5});
  CHECK(save(10, 2.8) == std::vector<int64_t>{10});
  CHECK(save(15, 3.9) == std::vector<int64_t>{10, 15});
  // A resume goes on from the manifest's lowest loss.
  lowest = {};
  lowest.go_on(load_manifest(out.path() / "checkpoints/step-00000015").manifest.progress);
  CHECK(save(20, 5.5) == std::vector<int64_t>{10, 20});
  CHECK(save(25, std::nan("")) == std::vector<int64_t>{10, 25});
  CHECK(save(30, 3) == std::vector<int64_t>{30});
}

TEST_CASE("The lowest loss begins anew with a phase of the mixture, and is not guessed", "[retention]") {
  const std::vector<DataPhase> phases = {{.until_step = 10, .weights = {}}, {.until_step = 25, .weights = {}}};
  LowestLoss lowest;
  const auto add = [&](int64_t step, std::optional<double> loss) {
    return lowest.add({.step = step, .loss = loss}, phases);
  };
  CHECK(add(5, 1) == 1);
  CHECK(add(10, 1.2) == 1);
  CHECK(add(15, 3) == 3);
  CHECK(add(20, std::nan("")) == 3);
  CHECK(add(30, std::nan("")) == std::nullopt);
  CHECK(add(35, 2) == 2);
  lowest.go_on({.step = 35, .loss = 8});
  CHECK(add(40, 9) == std::nullopt);
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
