// Parts of base that the files and lines of this room use.
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <unistd.h>

#include "base/error.h"
#include "base/output.h"
#include "base/output_file.h"
#include "base/progress.h"
#include "catch.h"
#include "unit/temporary_folder.h"

using namespace gptrain;

namespace {

// Returns the text that `write` leaves on a terminal.
std::string on_terminal(const std::function<void(std::FILE*)>& write) {
  const int controller = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(controller >= 0);
  REQUIRE(::grantpt(controller) == 0);
  REQUIRE(::unlockpt(controller) == 0);
  std::FILE* terminal = std::fopen(::ptsname(controller), "w");
  REQUIRE(terminal != nullptr);
  write(terminal);
  std::fclose(terminal);
  // Reads pieces of any size until EIO.
  std::string text;
  char piece[4096];
  for (ssize_t bytes = 0; (bytes = ::read(controller, piece, sizeof(piece))) > 0;) {
    text.append(piece, static_cast<size_t>(bytes));
  }
  ::close(controller);
  return text;
}

}  // namespace

TEST_CASE("An atomic file appears when it is committed and not before") {
  const TemporaryFolder folder;
  write_file(folder / "f", "old");
  {
    AtomicFile file(folder / "f");
    file.write("new");
    CHECK(read_file(folder / "f") == "old");
  }
  CHECK(read_file(folder / "f") == "old");
  {
    AtomicFile file(folder / "f");
    file.write("ne");
    file.write("w");
    file.commit();
  }
  CHECK(read_file(folder / "f") == "new");
  CHECK(file_names(folder.path()) == std::vector<std::string>{"f"});
}

TEST_CASE("An output file appends, empties or refuses what is there") {
  const TemporaryFolder folder;
  write_file(folder / "f", "a");
  OutputFile(folder / "f", OutputFile::Mode::append).write("b");
  CHECK(read_file(folder / "f") == "ab");
  OutputFile(folder / "f", OutputFile::Mode::overwrite).write("c");
  CHECK(read_file(folder / "f") == "c");
  try {
    OutputFile(folder / "f", OutputFile::Mode::create);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    CHECK(std::string(error.what()) == "cannot open " + (folder / "f").string() + ": File exists");
  }
}

TEST_CASE("Outputs that cannot be written are found beforehand, and named without their temporary files") {
  const TemporaryFolder folder;
  const auto refusal = [](const std::filesystem::path& path) -> std::string {
    try {
      check_can_write(path, ExitCode::data);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::data);
      return error.what();
    }
    return {};
  };
  const std::string is_folder = ": it is a folder; name a file in it";
  CHECK(refusal(folder.path()) == "cannot write " + folder.path().string() + is_folder);
  CHECK(refusal(folder / "new/") == "cannot write " + (folder / "new/").string() + is_folder);
  CHECK(refusal(folder / "none/f") == "cannot open " + (folder / "none/f").string() + ": No such file or directory");
  CHECK(refusal(folder / "f").empty());
  CHECK(file_names(folder.path()).empty());
}

TEST_CASE("A full disk is an error that names the file") {
  if (!std::filesystem::exists("/dev/full")) return;
  OutputFile full("/dev/full", OutputFile::Mode::append);
  CHECK_THROWS_WITH(full.write("x"), "cannot write /dev/full: No space left on device");
}

TEST_CASE("Progress texts") {
  constexpr int64_t mebibyte = 1 << 20;
  CHECK(format_progress_bar("packing", 45 * mebibyte, 90 * mebibyte, ProgressUnit::bytes, 12) ==
        "packing [============>           ]  50% 45.0 MiB/90.0 MiB 3.8 MiB/s eta 12.0 s");
  CHECK(format_progress_bar("packing", 45 * mebibyte, 90 * mebibyte, ProgressUnit::bytes, 10, {.tokens = 20'000'000}) ==
        "packing [============>           ]  50% 45.0 MiB/90.0 MiB 4.5 MiB/s 2.00M tokens/s eta 10.0 s");
  CHECK(format_progress_bar("init", 0, 10, ProgressUnit::items, 3) ==
        "init [>                       ]   0% 0/10 eta -");
  CHECK(format_progress_bar("init", 10, 10, ProgressUnit::items, 3) ==
        "init [========================] 100% 10/10 eta 0 ms");
  CHECK(format_progress_bar("init", 15, 10, ProgressUnit::items, 3) ==
        "init [========================] 100% 15/10 eta 0 ms");
  CHECK(format_progress_bar("reading", mebibyte, 0, ProgressUnit::bytes, 2) == "reading 1.0 MiB 512 KiB/s in 2.0 s");
  CHECK(format_progress_line("packing", 25, 100, ProgressUnit::items, 60) == "packing: 25% (25 of 100), eta 3m");
  CHECK(format_progress_line("packing", 25 * mebibyte, 100 * mebibyte, ProgressUnit::bytes, 10, {.tokens = 5000}) ==
        "packing: 25% (25.0 MiB of 100 MiB, 2.5 MiB/s, 500 tokens/s), eta 30.0 s");
  CHECK(format_progress_line("packing", 25, 0, ProgressUnit::items, 60) == "packing: 25 in 1m");
  CHECK(format_progress_line("packing", mebibyte, 0, ProgressUnit::bytes, 2,
                             {.tokens = 500, .text_bytes = 4 * mebibyte}) ==
        "packing: 1.0 MiB, 2.0 MiB/s of text, 250 tokens/s in 2.0 s");
  // Rates of compressed inputs are those of their text.
  CHECK(format_progress_end("packing", 300 * mebibyte, ProgressUnit::bytes, 10, {.text_bytes = 900 * mebibyte}) ==
        "packing: 300 MiB in 10.0 s (90.0 MiB/s of text)");
  CHECK(format_progress_end("packing", 300 * mebibyte, ProgressUnit::bytes, 10) ==
        "packing: 300 MiB in 10.0 s (30.0 MiB/s)");
  CHECK(format_progress_end("packing", 300 * mebibyte, ProgressUnit::bytes, 10, {.tokens = 123'000}) ==
        "packing: 300 MiB in 10.0 s (30.0 MiB/s, 12.3k tokens/s)");
}

TEST_CASE("Progress in a log is not a line for each update, and ends with one") {
  const TemporaryFolder folder;
  {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> log(std::fopen((folder / "log").c_str(), "w"), std::fclose);
    Progress progress("verifying", 1000, ProgressUnit::items, log.get());
    for (int64_t done = 0; done < 1000; ++done) progress.update(done);
    progress.finish();
    progress.finish();
    progress.update(1000);
  }
  const std::string text = read_file(folder / "log");
  CHECK(text.find("verifying: 1.00k in ") == 0);
  CHECK(text.find('\n') == text.size() - 1);
  CHECK(text.find('\r') == std::string::npos);
}

TEST_CASE("Progress on a terminal is a bar that the last line replaces") {
  const std::string text = on_terminal([](std::FILE* terminal) {
    Progress progress("verifying", 1000, ProgressUnit::items, terminal);
    for (int64_t done = 500; done < 1000; ++done) progress.update(done);
    progress.finish();
  });
  CHECK(text.find("\rverifying [============>           ]  50% 500/1.00k eta ") == 0);
  const size_t last = text.rfind("\rverifying: 1.00k in ");
  REQUIRE(last != std::string::npos);
  CHECK(text.find('\n') == text.size() - 1);
}

TEST_CASE("A bar that is left by an error gives its line back") {
  const std::string text = on_terminal([](std::FILE* terminal) {
    Progress("verifying", 10, ProgressUnit::items, terminal).update(5);
    std::fputs("error", terminal);
  });
  CHECK(text.find("\033[K\r\nerror") != std::string::npos);
}

TEST_CASE("text of files is shown without what a terminal obeys, and as UTF-8") {
  CHECK(without_controls("plain\tnaïve 日本 \xf0\x9f\x98\x80\n") == "plain\tnaïve 日本 \xf0\x9f\x98\x80\n");
  CHECK(without_controls("\x1b[31m\r\x7f") == "\\x1b[31m\\x0d\\x7f");
  CHECK(without_controls("\xc2\x9b\xc2\xa0") == "\\xc2\\x9b\xc2\xa0");
  CHECK(without_controls("\xe7x\xff\xc0\x80\xed\xa0\x80\xe6\x97") == "\\xe7x\\xff\\xc0\\x80\\xed\\xa0\\x80\\xe6\\x97");
}

TEST_CASE("text of files neither breaks a line nor turns it") {
  CHECK(without_controls("\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6x\xe2\x80\x8f") ==
        "\\xe2\\x80\\xa8\\xe2\\x80\\xae\\xe2\\x81\\xa6x\xe2\x80\x8f");
}

TEST_CASE("A message has the line breaks of its format and no other text's") {
  const std::string name = "a\nb";
  CHECK(Lines("{}: {}\n{:>2}|", name, "c\nd", 1).text() == "a\\nb: c\\nd\n 1|");
  const Lines two("{}\n{}", name, "x");
  CHECK(Lines("{}; {}", two, name).text() == "a\\nb\nx; a\\nb");
  CHECK(Lines::join(std::vector<std::string>{name, "c"}).text() == "a\\nb\nc");
  CHECK((Lines("1") += Lines::written("\n2")).text() == "1\n2");
  const Error error(ExitCode::data, "{}\n{}", name, 2);
  CHECK(std::string(error.what()) == "a\\nb\n2");
  CHECK(std::string(Error(ExitCode::data, "in {}", error.lines()).what()) == "in a\\nb\n2");
  CHECK(std::string(Error(ExitCode::data, "in {}", error.what()).what()) == "in a\\nb\\n2");
  CHECK(std::string(Error(ExitCode::data, name).what()) == "a\\nb");
}
