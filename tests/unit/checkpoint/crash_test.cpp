// Checkpoints after saving was killed or failed: by SIGKILL at random moments and at every system call, and by system
// calls that report a full disk, a broken disk or a file system that cannot exchange names.
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <optional>
#include <string>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "catch.h"
#include "checkpoint/checkpoint.h"
#include "helpers.h"

using namespace gptrain;
using namespace checkpoint_test;
namespace fs = std::filesystem;

namespace {

fs::path step_path(const fs::path& out, int64_t step) { return out / "checkpoints" / fmt::format("step-{:08}", step); }

// Saves one checkpoint after another, the even steps twice, and reports each step that is durable.
[[noreturn]] void save_for_ever(const fs::path& out, int64_t step, int report) {
  try {
    for (;; ++step) {
      save_step(out, step);
      if (::write(report, &step, sizeof step) != sizeof step) break;
      if (step % 2 == 0) save_step(out, step);
      if (!apply_retention(out, 2, 0).empty()) break;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  ::_exit(1);
}

enum class Ended { killed, finished, untraced };

// Runs `body` in a traced child, which stops before and after every system call. Kills the child if `at_stop`, called
// with the child and the number of the stop, returns true.
Ended trace(const std::function<void()>& body, const std::function<bool(pid_t, int)>& at_stop) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    ::raise(SIGSTOP);
    try {
      body();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSTOPPED(status)) ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  for (int stop = 0; WIFSTOPPED(status); ++stop) {
    if (at_stop(child, stop)) {
      ::kill(child, SIGKILL);
    } else {
      ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    }
    ::waitpid(child, &status, 0);
  }
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return Ended::killed;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return Ended::untraced;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) FAIL("the traced child ended with status " << status);
  return Ended::finished;
}

constexpr const char* never_traced = "skipped: this machine does not allow a process to trace its child";

// Kills `body` at every stop in turn, with `prepare` before and `check` after each.
void kill_everywhere(const std::function<void()>& prepare, const std::function<void()>& body,
                     const std::function<void()>& check) {
  int stop = 0;
  for (Ended ended = Ended::killed; ended == Ended::killed; ++stop) {
    prepare();
    ended = trace(body, [&](pid_t, int at) { return at == stop; });
    if (ended == Ended::untraced) {
      WARN(never_traced);
      return;
    }
    INFO("killed at stop " << stop);
    check();
  }
  // Far fewer stops would mean that nothing was traced.
  CHECK(stop > 40);
}

// Returns the disk calls of `body` in order: "w" write, "s" fsync, "r" rename; nullopt if tracing is not possible.
std::optional<std::string> disk_calls(const std::function<void()>& body) {
  std::string calls;
  bool seen = true;
  const auto record = [&](pid_t child, int stop) {
    if (stop == 0) return false;  // not a system call yet
    __ptrace_syscall_info info{};
    seen = seen && ::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info) > 0;
    if (!seen || info.op != PTRACE_SYSCALL_INFO_ENTRY) return false;
    const auto number = static_cast<long>(info.entry.nr);
    if (number == SYS_write) calls += 'w';
    if (number == SYS_fsync) calls += 's';
    if (number == SYS_renameat2) calls += 'r';
#ifdef SYS_rename
    if (number == SYS_rename) calls += 'r';
#endif
#ifdef SYS_renameat
    if (number == SYS_renameat) calls += 'r';
#endif
    return false;
  };
  if (trace(body, record) == Ended::untraced || !seen) return std::nullopt;
  return calls;
}

// Makes system call `number` fail with `error` in this process from now on, if its third argument is at least `least`.
// Returns false if the machine does not allow such filters.
bool fail_system_call(long number, int error, uint32_t least = 0) {
  const sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + 2 * sizeof(uint64_t)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, least, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof filter / sizeof filter[0], const_cast<sock_filter*>(filter)};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

constexpr const char* no_filter = "no filter";

// Returns the error of replacing step 2 while that system call fails.
std::string error_of_saving(const fs::path& out, long number, int error, uint32_t least = 0) {
  return in_child([&]() -> std::string {
    if (!fail_system_call(number, error, least)) return no_filter;
    return error_of([&] { save_step(out, 2, 2); });
  });
}

}  // namespace

TEST_CASE("Kill -9 at random moments: the newest complete checkpoint is sound and the last one or the next",
          "[crash][long]") {
  const TemporaryFolder out;
  Random random(3);
  int64_t last = 0;
  for (int round = 0; round < 120; ++round) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) save_for_ever(out.path(), last + 1, ends[1]);
    ::close(ends[1]);
    // Lets one save finish first in every other round, for progress on the slowest machine too.
    if (round % 2 == 1) REQUIRE(::read(ends[0], &last, sizeof last) == sizeof last);
    ::usleep(static_cast<useconds_t>(random_below(random, 30'000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    for (int64_t step = 0; ::read(ends[0], &step, sizeof step) == sizeof step;) last = step;
    ::close(ends[0]);

    INFO("round " << round << ", last known step " << last);
    const auto listed = list_checkpoints(out.path());
    const int64_t newest = listed.empty() ? 0 : listed.back().step;
    REQUIRE((newest == last || newest == last + 1));
    if (newest > 0) REQUIRE(holds_step(listed.back().path, newest));
    last = newest;
  }
  CHECK(last >= 60);
}

TEST_CASE("Kill -9 at every system call of a save", "[crash]") {
  const TemporaryFolder out;
  save_step(out.path(), 1);
  const auto check = [&] {
    const auto listed = list_checkpoints(out.path());
    REQUIRE_FALSE(listed.empty());
    REQUIRE(holds_step(listed.front().path, 1));
    if (listed.size() > 1) REQUIRE(holds_step(listed.back().path, 2));
  };
  kill_everywhere([&] { fs::remove_all(step_path(out.path(), 2)); }, [&] { save_step(out.path(), 2); }, check);
  CHECK(list_checkpoints(out.path()).size() == 2);
  CHECK_FALSE(has_temporary_folders(out.path()));
}

TEST_CASE("Kill -9 at every system call of replacing a checkpoint: the old or the new one bears the name",
          "[crash][long]") {
  const TemporaryFolder out;
  save_step(out.path(), 2, 1);
  uint32_t version = 1;
  bool replaced_once = false;
  const auto check = [&] {
    const auto listed = list_checkpoints(out.path());
    REQUIRE(listed.size() == 1);
    const bool replaced = holds_step(listed[0].path, 2, version + 1);
    REQUIRE((replaced || holds_step(listed[0].path, 2, version)));
    replaced_once = replaced_once || replaced;
    if (replaced) ++version;
    REQUIRE(apply_retention(out.path(), 1, 0) == "");
    REQUIRE_FALSE(has_temporary_folders(out.path()));
  };
  kill_everywhere([] {}, [&] { save_step(out.path(), 2, version + 1); }, check);
  CHECK(replaced_once);
}

TEST_CASE("Kill -9 at every system call of retention: what is listed is sound", "[crash][long]") {
  const TemporaryFolder out;
  const auto prepare = [&] {
    for (const int64_t step : {1, 2, 3}) {
      if (!fs::exists(step_path(out.path(), step))) save_step(out.path(), step);
    }
  };
  const auto check = [&] {
    const auto listed = list_checkpoints(out.path());
    REQUIRE_FALSE(listed.empty());
    REQUIRE(listed.back().step == 3);
    for (const auto& info : listed) REQUIRE(holds_step(info.path, info.step));
  };
  kill_everywhere(
      prepare, [&] { apply_retention(out.path(), 1, 0); }, check);
  CHECK(folder_names(out.path()) == std::vector<std::string>{"step-00000003"});
}

TEST_CASE("Everything is synced before the rename that publishes it, and the rename after", "[crash]") {
  const TemporaryFolder out;
  fs::create_directories(out.path() / "checkpoints");
  const auto saving = disk_calls([&] { save_step(out.path(), 1); });
  const auto replacing = disk_calls([&] { save_step(out.path(), 1); });
  const auto deleting = disk_calls([&] { apply_retention(out.path(), 0, 0); });
  if (!saving || !replacing || !deleting) {
    WARN(never_traced);
    return;
  }
  // Sync of the temporary folder's name; header (two writes) and three tensors, sync; sync of their name; the manifest,
  // sync; sync of its name.
  const std::string written = "swwwwwsswss";
  CHECK(*saving == written + "rs");
  CHECK(*replacing == written + "rs");
  CHECK(*deleting == "rs");
}

TEST_CASE("A save that fails names path and reason, removes its folder and leaves the others untouched", "[crash]") {
  const TemporaryFolder out;
  for (const int64_t step : {1, 2}) save_step(out.path(), step);
  const std::string folder = (out.path() / "checkpoints").string();
  struct Case {
    long number;
    int error;
    uint32_t least;
    std::string reason;
  };
  const Case cases[] = {
      {.number = SYS_write,
       .error = ENOSPC,
       .least = 4096,
       .reason = "cannot write " + folder + "/.tmp-step-00000002/rank-00000.safetensors: No space left"},
      {.number = SYS_fsync, .error = EIO, .least = 0, .reason = "cannot sync " + folder},
      {.number = SYS_renameat2,
       .error = EACCES,
       .least = 0,
       .reason = "cannot replace " + folder + "/step-00000002: Permission denied"},
  };
  for (const Case& c : cases) {
    const std::string message = error_of_saving(out.path(), c.number, c.error, c.least);
    if (message == no_filter) {
      WARN("skipped: this machine does not allow system call filters");
      return;
    }
    CHECK(lacking(message, {c.reason}) == "");
    CHECK(folder_names(out.path()) == std::vector<std::string>{"step-00000001", "step-00000002"});
    CHECK(holds_step(step_path(out.path(), 1), 1));
    CHECK(holds_step(step_path(out.path(), 2), 2));
  }
}

TEST_CASE("A file that must not grow further (as on a full disk) fails the save and nothing else", "[crash]") {
  const TemporaryFolder out;
  save_step(out.path(), 1);
  const std::string message = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {20'000, 20'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return error_of([&] { save_step(out.path(), 2); });
  });
  CHECK(lacking(message, {"cannot write", "rank-00000.safetensors: File too large"}) == "");
  CHECK(folder_names(out.path()) == std::vector<std::string>{"step-00000001"});
  CHECK(holds_step(step_path(out.path(), 1), 1));
}

TEST_CASE("Replacing works on file systems that cannot exchange two names", "[crash]") {
  const TemporaryFolder out;
  for (const int64_t step : {1, 2}) save_step(out.path(), step);
  const std::string message = error_of_saving(out.path(), SYS_renameat2, EINVAL);
  if (message == no_filter) {
    WARN("skipped: this machine does not allow system call filters");
    return;
  }
  CHECK(message == "nothing was thrown");
  CHECK(folder_names(out.path()) == std::vector<std::string>{"step-00000001", "step-00000002"});
  CHECK(holds_step(step_path(out.path(), 2), 2, 2));
}

TEST_CASE("A folder without permission to write is an error with path and reason", "[crash]") {
  const TemporaryFolder out;
  fs::permissions(out.path(), fs::perms::all);
  const std::string message = in_child([&]() -> std::string {
    // The superuser may write anywhere.
    if (::getuid() == 0 && ::setuid(65534) != 0) return "cannot drop the superuser's rights";
    fs::create_directory(out.path() / "run");
    fs::permissions(out.path() / "run", fs::perms::owner_read | fs::perms::owner_exec);
    return error_of([&] { save_step(out.path() / "run", 1); });
  });
  CHECK(lacking(message, {"cannot create " + (out.path() / "run/checkpoints").string() + ": Permission denied"}) == "");
}
