#include "base/process_limits.h"

#include <algorithm>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace gptrain::inline base {
namespace {

constexpr rlim_t usual_stack_bytes = rlim_t{8} << 20;
constexpr rlim_t least_stack_bytes = rlim_t{1} << 20;
constexpr int64_t files_of_program = 12;  // beside standard streams, in all commands; a run of one rank uses 6

void raise_soft_limit(__rlimit_resource kind, rlim_t most) {
  rlimit limit{};
  if (getrlimit(kind, &limit) != 0) return;
  const rlim_t raised = std::min(most, limit.rlim_max);
  if (limit.rlim_cur >= raised) return;
  limit.rlim_cur = raised;
  setrlimit(kind, &limit);
}

// Returns how many more files this process can open, up to `most`: those that its parent left open count as well.
int64_t free_descriptors(int64_t most) {
  std::vector<int> opened;
  while (std::ssize(opened) < most) {
    const int descriptor = open("/", O_PATH | O_CLOEXEC);
    if (descriptor < 0) break;
    opened.push_back(descriptor);
  }
  for (const int descriptor : opened) close(descriptor);
  return std::ssize(opened);
}

// Returns the fault if this process cannot open `files` more files; empty: none.
std::string shortage_of_files(int64_t files) {
  const int64_t free = free_descriptors(files);
  rlimit limit{};
  if (free >= files || getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  return fmt::format(
      "the process may have {} open files, and can open {} more, where it needs {}: raise the hard limit (ulimit -Hn)",
      limit.rlim_cur, free, files);
}

}  // namespace

std::string raise_process_limits() {
  raise_soft_limit(RLIMIT_NOFILE, RLIM_INFINITY);
  if (std::string fault = shortage_of_files(files_of_program); !fault.empty()) return fault;
  raise_soft_limit(RLIMIT_STACK, usual_stack_bytes);
  rlimit stack{};
  if (getrlimit(RLIMIT_STACK, &stack) != 0) return "";
  if (stack.rlim_cur < least_stack_bytes) {
    return fmt::format("a stack may have only {}: raise the hard limit (ulimit -Hs) to at least {}",
                       format_bytes(static_cast<double>(stack.rlim_cur)),
                       format_bytes(static_cast<double>(least_stack_bytes)));
  }
  // Stacks of threads have the size of the limit at the program's start unless told otherwise.
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, std::min(stack.rlim_cur, usual_stack_bytes));
  pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
  return "";
}

void require_open_files(int64_t ranks) {
  constexpr int64_t files_of_rank = 2;  // a file of the checkpoint and its folder
  const std::string fault = shortage_of_files(files_of_program + files_of_rank * ranks);
  if (!fault.empty()) throw Error(ExitCode::machine, "{}", fault);
}

void require_address_space(int64_t bytes) {
  for (const auto& [kind, name] :
       {std::pair{RLIMIT_AS, "address space (ulimit -v)"}, {RLIMIT_DATA, "data (ulimit -d)"}}) {
    rlimit limit{};
    if (getrlimit(kind, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    // Memory that cannot be written to counts as address space only.
    const int access = kind == RLIMIT_AS ? PROT_NONE : PROT_READ | PROT_WRITE;
    void* const data = mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      throw Error(ExitCode::machine,
                  "the process needs another {} of {} for arrays, threads and libraries, but its limit is {} in all: "
                  "raise the limit",
                  format_bytes(static_cast<double>(bytes)), name, format_bytes(static_cast<double>(limit.rlim_cur)));
    }
    munmap(data, bytes);
  }
}

bool may_write_all_sizes() {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
}

void require_file_size(int64_t bytes, std::string_view file) {
  rlimit limit{};
  if (may_write_all_sizes() || getrlimit(RLIMIT_FSIZE, &limit) != 0) return;
  if (limit.rlim_cur >= static_cast<rlim_t>(bytes)) return;
  throw Error(ExitCode::machine, "the process may write files of {} (ulimit -f), and {} has {}: raise the limit",
              format_bytes(static_cast<double>(limit.rlim_cur)), file, format_bytes(static_cast<double>(bytes)));
}

}  // namespace gptrain::base
