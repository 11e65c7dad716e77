// Working files return the bytes that were written, by io_uring and by threads, and say plainly when they cannot.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "storage/working_files.h"
#include "unit/temporary_folder.h"

namespace test_working_files {

using namespace gptrain;
namespace fs = std::filesystem;

namespace {

// Memory that begins at a multiple of page_bytes.
class Pages {
 public:
  explicit Pages(int64_t bytes) : bytes_(static_cast<size_t>(bytes)), data_(std::aligned_alloc(page_bytes, bytes_)) {
    std::memset(data_, 0, bytes_);
  }
  ~Pages() { std::free(data_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  bool operator==(const Pages& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data_, other.data_, bytes_) == 0;
  }
  void fill(int seed) {
    for (size_t i = 0; i < bytes_; ++i)
      data()[i] = static_cast<std::byte>(i * 31 + i / 4096 + static_cast<size_t>(seed));
  }

 private:
  const size_t bytes_;
  void* const data_;
};

const std::vector<StoredPiece> pieces = {{"unit 0", 3 * page_bytes},
                                         {"unit 1", 2 * WorkingFiles::block_bytes + page_bytes},
                                         {"unit 2", 0},
                                         {"unit 3", WorkingFiles::block_bytes}};

WorkingFilesOptions options_of(const std::vector<fs::path>& folders, bool uring = true) {
  return {.folders = folders, .owner = "rank-5", .depth = 4, .may_use_uring = uring};
}

std::string message_of(const std::function<void()>& body, ExitCode code = ExitCode::checkpoint) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return {};
}

// Returns the path by which the process reaches its working file in a folder.
fs::path open_file_in(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const fs::path target = fs::read_symlink(entry.path(), ignored);
    if (target.string().starts_with((folder / "gptrain-").string())) return entry.path();
  }
  return {};
}

}  // namespace

TEST_CASE("pieces come back from one drive and from two, by io_uring and by threads") {
  const TemporaryFolder one, two;
  for (const bool uring : {true, false}) {
    for (const bool both : {false, true}) {
      INFO(uring << both);
      WorkingFiles files(options_of(both ? std::vector{one.path(), two.path()} : std::vector{one.path()}, uring),
                         pieces);
      if (!uring) CHECK(files.method() == "threads");
      CHECK(fs::is_empty(one.path()));  // the files have no names
      std::vector<std::unique_ptr<Pages>> written, read;
      std::vector<WorkingFiles::Ticket> tickets;
      for (size_t i = 0; i < pieces.size(); ++i) {
        written.push_back(std::make_unique<Pages>(pieces[i].bytes));
        read.push_back(std::make_unique<Pages>(pieces[i].bytes));
        written.back()->fill(static_cast<int>(i));
        tickets.push_back(files.begin_write(i, written.back()->data()));
      }
      for (const WorkingFiles::Ticket ticket : tickets) files.wait(ticket);
      for (size_t i = 0; i < pieces.size(); ++i) tickets[i] = files.begin_read(i, read[i]->data());
      written[0]->fill(9);
      for (size_t i = pieces.size(); i > 0; --i) {
        const WorkingFiles::Times times = files.wait(tickets[i - 1]);
        CHECK(files.is_over(tickets[i - 1]));
        CHECK(times.end >= times.start);
        if (i > 1) CHECK(*read[i - 1] == *written[i - 1]);
      }
      files.write(0, written[0]->data());
      files.read(0, read[0]->data());
      CHECK(*read[0] == *written[0]);
    }
  }
}

TEST_CASE("a read comes after writes that begin later, and lets other reads pass") {
  const TemporaryFolder folder;
  for (const bool uring : {true, false}) {
    INFO(uring);
    WorkingFiles files(options_of({folder.path()}, uring), pieces);
    Pages before(pieces[1].bytes), after(pieces[1].bytes), read(pieces[1].bytes), other(pieces[0].bytes);
    before.fill(1);
    after.fill(2);
    files.write(0, before.data());
    files.write(1, before.data());
    const WorkingFiles::Ticket write = files.reserve_write(1), none = files.reserve_write(2);
    CHECK(none == WorkingFiles::done);
    const WorkingFiles::Ticket late = files.begin_read(1, read.data(), {none, write});
    files.read(0, other.data());
    CHECK(std::memcmp(other.data(), before.data(), static_cast<size_t>(pieces[0].bytes)) == 0);
    CHECK(!files.is_over(late));
    files.begin_reserved(none, nullptr);
    files.begin_reserved(write, after.data());
    const double read_start = files.wait(late).start;
    CHECK(read == after);
    CHECK(files.wait(write).end <= read_start);
  }
}

TEST_CASE("nobody waits for a reserved write that is given up") {
  const TemporaryFolder folder;
  WorkingFiles files(options_of({folder.path()}), pieces);
  Pages data(pieces[0].bytes);
  files.write(0, data.data());
  const WorkingFiles::Ticket write = files.reserve_write(0), read = files.begin_read(0, data.data(), {write});
  files.give_up(std::make_exception_ptr(Error(ExitCode::checkpoint, "an update failed")));
  CHECK(message_of([&] { files.wait(read); }) == "an update failed");
  CHECK(message_of([&] { files.begin_reserved(write, data.data()); }) == "an update failed");
}

TEST_CASE("memory that was lent is read and written as other memory is") {
  const TemporaryFolder folder;
  for (const bool uring : {true, false}) {
    INFO(uring);
    WorkingFiles files(options_of({folder.path()}, uring), pieces);
    Pages lent(2 * pieces[1].bytes), other(pieces[1].bytes);
    const int64_t half = pieces[1].bytes;
    // The second transfer begins in lent memory and ends outside of it.
    files.lend({{lent.data(), static_cast<size_t>(half)}, {lent.data() + half, static_cast<size_t>(page_bytes)}});
    lent.fill(7);
    files.write(1, lent.data());
    files.read(1, lent.data() + half);
    CHECK(std::memcmp(lent.data(), lent.data() + half, static_cast<size_t>(half)) == 0);
    files.read(1, other.data());
    CHECK(std::memcmp(lent.data(), other.data(), static_cast<size_t>(half)) == 0);
  }
}

TEST_CASE("a bit that flips in a working file is found, and file and piece are named") {
  const TemporaryFolder folder;
  WorkingFiles files(options_of({folder.path()}), pieces);
  Pages data(pieces[1].bytes);
  data.fill(1);
  files.write(0, data.data());
  files.write(1, data.data());
  const fs::path path = open_file_in(folder.path());
  REQUIRE(!path.empty());
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(pieces[0].bytes + WorkingFiles::block_bytes + 77);
    file.put('\x5a');
  }
  files.read(0, data.data());
  const std::string message = message_of([&] { files.read(1, data.data()); });
  CHECK(message.find((folder.path() / "gptrain-").string()) != std::string::npos);
  CHECK(message.find("unit 1, block 1") != std::string::npos);
  CHECK(message_of([&] { files.read(0, data.data()); }) == message);  // nothing works from there on
}

TEST_CASE("a drive that goes away is told with file and piece") {
  const TemporaryFolder folder;
  for (const bool uring : {true, false}) {
    WorkingFiles files(options_of({folder.path()}, uring), pieces);
    Pages data(pieces[1].bytes);
    files.write(1, data.data());
    fs::resize_file(open_file_in(folder.path()), 0);
    const std::string message = message_of([&] { files.read(1, data.data()); });
    CHECK(message.find("cannot read the working file " + (folder.path() / "gptrain-").string()) == 0);
    CHECK(message.find("unit 1, block ") != std::string::npos);
    CHECK(message.find("Input/output error") != std::string::npos);
  }
}

TEST_CASE("names that a power loss has left are no obstacle") {
  const TemporaryFolder folder;
  for (int number = 0; number < 100; ++number)
    std::ofstream(folder.path() / fmt::format("gptrain-{}-{}-rank-5.state", getpid(), number)) << "left";
  const WorkingFiles files(options_of({folder.path()}), pieces);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 100);
}

// Runs where tests/crash/test_disk_clones.py mounts a file system that clones.
TEST_CASE("a clone keeps the bytes of its time, and its blocks are checked", "[.clones]") {
  const TemporaryFolder one, two;
  const std::vector folders = {one.path(), two.path()};
  REQUIRE(clone_obstacle({one.path().string(), two.path().string()}) == "");
  WorkingFiles files(options_of(folders), pieces);
  Pages first(pieces[1].bytes), second(pieces[1].bytes), read(WorkingFiles::block_bytes);
  first.fill(1);
  second.fill(2);
  for (const size_t piece : {0, 1, 3}) files.write(piece, first.data());
  const std::unique_ptr<StoredFiles> clone = files.clone(2);
  CHECK(file_names(one.path()).empty());
  for (const size_t piece : {0, 1, 3}) files.write(piece, second.data());
  for (const size_t piece : {0, 1}) {
    for (size_t number = 0; number < clone->num_blocks(piece); ++number) {
      INFO(piece << " " << number);
      clone->read(piece, number, read.data());
      const auto bytes = static_cast<size_t>(clone->block(piece, number).bytes);
      CHECK(std::memcmp(read.data(), first.data() + number * WorkingFiles::block_bytes, bytes) == 0);
    }
  }
  CHECK_THROWS_AS(clone->read(3, 0, read.data()), Error);  // has no content in the clone
  files.read(1, first.data());
  CHECK(first == second);
  const StoredFiles::Block& block = clone->block(1, 2);
  REQUIRE(pwrite(clone->descriptor(block), second.data(), page_bytes, block.offset) == page_bytes);
  CHECK(message_of([&] { clone->read(1, 2, read.data()); }).find("(unit 1, block 2 at byte ") != std::string::npos);
}

TEST_CASE("a folder whose files cannot be cloned is told by name") {
  const TemporaryFolder folder;
  const fs::path missing = folder.path() / "missing";
  CHECK(clone_obstacle({folder.path().string(), missing.string()}) ==
        fmt::format("memory.disk_path: cannot make a working file in {}: No such file or directory", missing.string()));
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a folder that cannot hold working files is refused before the run") {
  const TemporaryFolder folder;
  const fs::path missing = folder.path() / "missing";
  CHECK(message_of([&] { WorkingFiles(options_of({missing}), pieces); }) ==
        fmt::format("memory.disk_path: cannot make a working file in {}: No such file or directory", missing.string()));
  struct rlimit before {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const struct rlimit small { 1 << 20, before.rlim_max };
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string full = message_of([&] { WorkingFiles(options_of({folder.path()}), pieces); }, ExitCode::machine);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(full ==
        "the process may write files of 1.0 MiB (ulimit -f), and a working file of memory.disk_path has 12.0 MiB: "
        "raise the limit");
  CHECK(fs::is_empty(folder.path()));
}

}  // namespace test_working_files
