// A run's folder, which several runs may want at the same time.
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "train/folder.h"
#include "unit/report/temporary_folder.h"

using namespace gptrain;

// Every lock is that of a run that is refused, and takes its folders with it again.
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
