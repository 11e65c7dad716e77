// A run's folder, which several runs may want at the same time.
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "model_fixture.h"
#include "train/folder.h"
#include "unit/temporary_folder.h"

using namespace gptrain;

// Every lock here belongs to a refused run, which removes its folders again.
TEST_CASE("runs that are refused do not take a folder away from one that is about to use it") {
  const TemporaryFolder folder;
  const std::filesystem::path out = folder.path() / "of-a-user" / "out";
  constexpr int num_threads = 3, num_runs = 400;
  std::atomic<int> num_locked = 0;
  std::vector<std::string> faults(num_threads);
  std::vector<std::thread> threads;
  for (std::string& fault : faults) {
    threads.emplace_back([&out, &num_locked, &fault] {
      for (int i = 0; i < num_runs; ++i) {
        try {
          const FolderLock lock(out);
          ++num_locked;
          if (!std::filesystem::is_directory(out)) fault = "no folder though it is locked";
        } catch (const Error& error) {
          const std::string message = error.what();
          if (message.find("another gptrain is running in this folder") == std::string::npos) fault = message;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& fault : faults) CHECK(fault == "");
  CHECK(num_locked > 0);
  const FolderLock last(out);
}

TEST_CASE("a folder that cannot be made is told of, and nothing of it is left") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(FolderLock("/dev/null/x"), "run.out: cannot create /dev/null/x: Not a directory");
  { const FolderLock lock(folder.path() / "a" / "b"); }
  CHECK_FALSE(std::filesystem::exists(folder.path() / "a"));
}

TEST_CASE("where a save has failed in a folder that is there, the state has another place") {
  const TemporaryFolder folder;
  const std::filesystem::path out = folder.path() / "out";
  FolderLock lock(out);
  FolderWatch watch(out, &lock);
  CHECK(watch.place_to_save() == out);
  CHECK(watch.has_other_place("it cannot be written"));
  CHECK(watch.fault() == "it cannot be written");
  CHECK(watch.place_to_save() == out.string() + ".saved");
  CHECK_FALSE(watch.has_other_place("nor this"));
  CHECK(watch.fault() == "it cannot be written");
}

TEST_CASE("room is wanted for the checkpoints that a run holds at a time") {
  const auto shortage = [](const std::vector<std::string>& overrides, int64_t step, int64_t kept, uintmax_t free) {
    const RunConfig config = testing::small_config(testing::Family::gpt2, overrides);
    constexpr int64_t bytes = 1 << 10;
    return checkpoint_shortage(config.checkpoint, config.run, step, kept, bytes,
                               {.capacity = 1 << 30, .free = free, .available = free});
  };
  const std::vector<std::string> often = {"checkpoint.every_steps=10", "checkpoint.keep_last=3"};
  CHECK(shortage(often, 0, 0, 4096) == "");
  CHECK(shortage(often, 0, 0, 4095) ==
        "run.out = none: 4.0 KiB are free there, but 4 checkpoints of 1.0 KiB will take 4.0 KiB "
        "(checkpoint.keep_last = 3, and the one being written)");
  // Existing checkpoints take no more room, and retention keeps only some.
  CHECK(shortage(often, 50, 2, 2048) == "");
  CHECK(shortage(often, 50, 2, 2047).find("but 2 more checkpoints of 1.0 KiB will take 2.0 KiB") != std::string::npos);
  CHECK(shortage(often, 50, 9, 1024) == "");
  // A run near its end writes fewer checkpoints than it may keep, a finished one none.
  CHECK(shortage(often, 80, 0, 2048) == "");
  CHECK(shortage(often, 79, 0, 2048) != "");
  CHECK(shortage({}, 0, 0, 1024) == "");
  CHECK(shortage(often, 100, 0, 0) == "");
  const std::string refusal =
      "run.out = none: a checkpoint takes 1.0 KiB, and 1023 B are free there: free space, or choose another run.out";
  CHECK_THROWS_WITH(shortage({}, 0, 0, 1023), refusal);
  CHECK_THROWS_WITH(shortage(often, 90, 9, 1023), refusal);
}

TEST_CASE("what a disk keeps back for root is room that root may have") {
  const RunConfig config = testing::small_config(testing::Family::gpt2);
  CHECK(checkpoint_shortage(config.checkpoint, config.run, 0, 0, 1024,
                            {.capacity = 1 << 30, .free = 1024, .available = 0}) != "");
}
