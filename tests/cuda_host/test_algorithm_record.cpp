// The file in which run.algorithm_cache keeps timed algorithms, without those of other devices.
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <unistd.h>

#include "algorithm_record.h"
#include "catch.h"

using namespace gptrain;

namespace fs = std::filesystem;

namespace {

// Sets an environment variable while it lives; null: unset.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name); before != nullptr) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) { value == nullptr ? unsetenv(name_) : setenv(name_, value, 1); }

  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("run.algorithm_cache: a folder, the user's, or none") {
  const AlgorithmRecord record("A GPU, 132 multiprocessors", "cuBLASLt 12");
  const std::string name = "products-A_GPU__132_multiprocessors-cuBLASLt_12.json";
  const Variable home("HOME", "/people/someone");
  {
    const Variable cache("XDG_CACHE_HOME", "/cache");
    CHECK(record.cache_file("auto") == fs::path("/cache/gptrain") / name);
    CHECK(record.cache_file("timed/here") == fs::path("timed/here") / name);
    CHECK(record.cache_file("none").empty());
  }
  {
    const Variable relative("XDG_CACHE_HOME", "cache");
    CHECK(record.cache_file("auto") == fs::path("/people/someone/.cache/gptrain") / name);
  }
  const Variable unset("XDG_CACHE_HOME", nullptr);
  CHECK(record.cache_file("auto") == fs::path("/people/someone/.cache/gptrain") / name);
  const Variable homeless("HOME", nullptr);
  CHECK(record.cache_file("auto").empty());
}

TEST_CASE("algorithms that one run timed are offered to the next, on such a device only") {
  const fs::path folder = fs::temp_directory_path() / ("gptrain-algorithms-" + std::to_string(getpid()));
  AlgorithmRecord timed("A GPU", "cuBLASLt 12");
  const fs::path file = timed.cache_file(folder.string());
  CHECK(timed.read(file).empty());  // missing, which is not a fault
  timed.set("forward 1x2x3", "7 8");
  CHECK(timed.write(file).empty());

  AlgorithmRecord other_run("A GPU", "cuBLASLt 12");
  other_run.set("forward 4x5x6", "9");
  CHECK(other_run.write(file).empty());  // adds to it

  AlgorithmRecord next("A GPU", "cuBLASLt 12");
  CHECK(next.read(file).empty());
  REQUIRE(next.find("forward 1x2x3") != nullptr);
  CHECK(*next.find("forward 1x2x3") == "7 8");
  CHECK(next.find("forward 4x5x6") != nullptr);

  AlgorithmRecord elsewhere("Another GPU", "cuBLASLt 12");
  CHECK(elsewhere.read(file).find("is of another device") != std::string::npos);
  CHECK(elsewhere.find("forward 1x2x3") == nullptr);
  fs::remove_all(folder);
}
