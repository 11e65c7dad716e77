// Further tries of calls on files.
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/file_error.h"
#include "base/output_file.h"
#include "catch.h"
#include "unit/temporary_folder.h"

using namespace gptrain;

namespace {

// Returns the number of calls that end with the last of `errors`; 0 there is a success.
int calls_until(const std::vector<int>& errors) {
  int calls = 0;
  const int result = call_with_tries([&] {
    errno = errors.at(static_cast<size_t>(calls++));
    return errno == 0 ? 7 : -1;
  });
  CHECK(result == (errors.back() == 0 ? 7 : -1));
  return calls;
}

}  // namespace

TEST_CASE("a call is made again after an error that may pass, and after no other") {
  for (const int error : {EBUSY, ENOTEMPTY, EMFILE, ENFILE, EDQUOT, ESTALE, EIO, ETIMEDOUT}) CHECK(may_pass(error));
  for (const int error : {ENOENT, EACCES, EROFS, ENOSPC, ENOTDIR}) CHECK(calls_until({error}) == 1);
  CHECK(calls_until({EINTR, EINTR, EINTR, EINTR, 0}) == 5);
  CHECK(calls_until({ESTALE, 0}) == 2);
  CHECK(calls_until({EBUSY, EBUSY, EBUSY}) == most_tries);
}

TEST_CASE("a file that was cut short, replaced or removed is not in its place") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "records";
  { OutputFile(path, OutputFile::Mode::append).write("earlier\n"); }
  OutputFile file(path, OutputFile::Mode::append);
  file.write("a\n");
  CHECK(file.is_in_place());
  std::filesystem::resize_file(path, 9);
  CHECK_FALSE(file.is_in_place());
  std::filesystem::resize_file(path, 10);
  CHECK(file.is_in_place());
  std::filesystem::rename(path, folder.path() / "moved");
  CHECK_FALSE(file.is_in_place());
  CHECK(file.is_at(folder.path() / "moved"));
}
