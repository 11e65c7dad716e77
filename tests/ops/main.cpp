// test_ops [--backend cpu|cuda] [--repeats N] [--filter TEXT] [--bench] [--seed N] [--instruction-set NAME]
//          [--matrix-kernels NAME] [--without-f16] [--list-ops] [--op NAME] [--every N] [--of-each-kind N]
//
// Exit status: 0 all cases passed, or some passed and the rest were skipped; 1 something failed; 2 bad command line;
// 77 a requested check cannot run here.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <map>
#include <set>

#include "harness.h"
#include "matrix_kernels_choice.h"
#include "ops/cpu/kernels/kernel_table.h"
#include "step/machine_limits.h"

namespace gptrain::ops_test {
namespace {

constexpr int exit_skipped = 77;

std::vector<void (*)(Suite&)>& registrations() {
  static std::vector<void (*)(Suite&)> list;
  return list;
}

struct Options {
  std::string filter, op;
  bool bench = false;
  uint64_t seed = 1;
  std::string instruction_set, matrix_kernels;
  std::string backend = "cpu";
  int repeats = 3;
  bool without_f16 = false;
  bool list_ops = false;
  int every = 1;
  size_t of_each_kind = 0;  // 0: all
};

// Returns a seed that depends only on the case, so that a filter reproduces a failure.
uint64_t case_seed(uint64_t seed, const Suite::Case& test) {
  uint64_t hash = 0xCBF29CE484222325U ^ seed;
  for (const std::string_view text : {test.op, std::string_view(test.description)})
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return hash;
}

std::string title(const Suite::Case& test) { return fmt::format("{} [{}]", test.op, test.description); }

BackendUnderTest cpu_backend(bool thread_independent) {
  BackendUnderTest result{.name = thread_independent ? "cpu, thread-independent" : "cpu",
                          .variants = {},
                          .thread_independent = thread_independent,
                          .f16 = false};
  for (const int num_threads : {2, 1, 3}) result.variants.push_back(make_cpu_backend(num_threads, thread_independent));
  return result;
}

// Runs each op several times: a device must give the same bits each time. On the host harness each run has another
// order of threads.
BackendUnderTest cuda_backend(const Options& options) {
  BackendUnderTest result{.name = "cuda", .variants = {}, .thread_independent = false, .f16 = !options.without_f16};
  for (int i = 0; i < options.repeats; ++i) result.variants.push_back(make_cuda_backend(i % num_cuda_devices()));
  return result;
}

std::string device_text(const Backend& backend) {
  const Target& target = backend.target();
  return target.kind == Target::Kind::cpu ? fmt::format("{} threads, {}", target.num_threads, select_kernels().name)
                                          : target.name;
}

// Returns true if the op computes differently on a thread-independent backend.
bool is_linear(std::string_view op) {
  return op == LinearForward::name || op == LinearBackwardInput::name || op == LinearBackwardWeight::name;
}

bool uses_matrix_kernels(std::string_view op) {
  return is_linear(op) || op == AttentionForward::name || op == AttentionBackward::name || op == BiasGradient::name ||
         op == GroupedLinearForward::name || op == GroupedLinearBackwardInput::name ||
         op == GroupedLinearBackwardWeight::name;
}

struct Outcome {
  bool failed = false;
  std::string missing = {};  // feature that the backend lacks, so that the case was skipped; empty: none
};

Outcome run_case(const Suite::Case& test, BackendUnderTest& backend, const Options& options) {
  Trial trial(backend, case_seed(options.seed, test));
  try {
    test.body(trial);
  } catch (const NotOnThisBackend& backend_lacks) {
    return {.missing = std::string(backend_lacks.missing)};
  } catch (const std::exception& error) {
    trial.fail(fmt::format("threw: {}", error.what()));
  }
  for (const std::string& failure : trial.failures())
    fmt::print("FAIL {} backend={} seed={}: {}\n", title(test), backend.name, options.seed, failure);
  return {.failed = !trial.failures().empty()};
}

// Checks that every op has a case and a bench, if no filter is given.
int count_ops_without(std::string_view what, const std::vector<Suite::Case>& cases) {
  std::set<std::string_view> covered;
  for (const Suite::Case& test : cases) covered.insert(test.op);
  int missing = 0;
#define GPTRAIN_CHECK_COVERED(Op)                              \
  if (!covered.contains(Op::name)) {                           \
    fmt::print("FAIL {}: the op has no {}\n", Op::name, what); \
    ++missing;                                                 \
  }
  GPTRAIN_FOR_EACH_OP(GPTRAIN_CHECK_COVERED)
#undef GPTRAIN_CHECK_COVERED
  return missing;
}

// Returns the op and the description without numbers, except those in names (f32): cases of a kind differ only in
// sizes, seeds and factors.
std::string kind(const Suite::Case& test) {
  std::string words;
  bool in_name = false;
  for (const char c : title(test)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) in_name = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (!digit || in_name) words += c;
  }
  return words;
}

// Returns at most `count` cases of each kind, spread from the first to the last; 0: all.
std::vector<const Suite::Case*> some_of_each_kind(const std::vector<Suite::Case>& cases, size_t count) {
  std::map<std::string, std::vector<size_t>> kinds;
  for (size_t i = 0; i < cases.size(); ++i) kinds[kind(cases[i])].push_back(i);
  std::vector<bool> taken(cases.size(), count == 0);
  for (const auto& [words, alike] : kinds) {
    for (size_t i = 0; i < count; ++i)
      taken[alike[count == 1 ? alike.size() / 3 : i * (alike.size() - 1) / (count - 1)]] = true;
  }
  std::vector<const Suite::Case*> chosen;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (taken[i]) chosen.push_back(&cases[i]);
  }
  return chosen;
}

int run_checks(const Suite& suite, BackendUnderTest& backend, const Options& options) {
  int failed = 0;
  if (options.filter.empty() && options.op.empty())
    failed = count_ops_without("case", suite.cases()) + count_ops_without("bench", suite.benches());
  int run = 0, skipped = 0, seen = 0;
  std::map<std::string, int> skipped_without;
  for (const Suite::Case* chosen : some_of_each_kind(suite.cases(), options.of_each_kind)) {
    const Suite::Case& test = *chosen;
    if (title(test).find(options.filter) == std::string::npos) continue;
    if (!options.op.empty() && test.op != options.op) continue;
    if (backend.thread_independent && !is_linear(test.op)) continue;
    if (!options.matrix_kernels.empty() && !uses_matrix_kernels(test.op)) continue;
    if (seen++ % options.every != 0) continue;
    ++run;
    const Outcome outcome = run_case(test, backend, options);
    if (outcome.failed) ++failed;
    if (outcome.missing.empty()) continue;
    ++skipped;
    ++skipped_without[outcome.missing];
  }
  std::string left_out;
  for (const auto& [missing, count] : skipped_without)
    left_out += fmt::format(", {} skipped: without {}", count, missing);
  fmt::print("{} cases on {} ({}), {} failed{}\n", run, backend.name, device_text(*backend.variants.front()), failed,
             left_out);
  if (run == 0 && !backend.thread_independent) {
    fmt::print(stderr, "no case matches the filter \"{}\"{}\n", options.filter,
               options.op.empty() ? "" : fmt::format(" and is of the op \"{}\"", options.op));
    return 2;
  }
  if (failed > 0) return 1;
  return run > 0 && skipped == run ? exit_skipped : 0;
}

int run_benches(const Suite& suite, BackendUnderTest& backend, const Options& options) {
  backend.variants.clear();
  backend.variants.push_back(options.backend == "cuda" ? make_cuda_backend(0) : make_cpu_backend(0));
  // Measures the machine's own limits: copying memory, and a large matrix product.
  const double bandwidth = measure_copy_rate(*backend.variants.front());
  const double f32_rate = measure_matrix_rate(*backend.variants.front(), DType::f32);
  const double bf16_rate = measure_matrix_rate(*backend.variants.front(), DType::bf16);
  fmt::print("{}, {}: copy {:.1f} GB/s, matrix product f32 {:.0f} GFLOP/s, bf16 {:.0f} GFLOP/s\n", backend.name,
             device_text(*backend.variants.front()), bandwidth / 1e9, f32_rate / 1e9, bf16_rate / 1e9);
  bool failed = false;
  for (const Suite::Case& bench : suite.benches()) {
    if (title(bench).find(options.filter) == std::string::npos) continue;
    Trial trial(backend, case_seed(options.seed, bench));
    try {
      bench.body(trial);
    } catch (const NotOnThisBackend& backend_lacks) {
      fmt::print("{:<60} skipped: without {}\n", title(bench), backend_lacks.missing);
      continue;
    } catch (const std::exception& error) {
      fmt::print("FAIL {}: threw: {}\n", title(bench), error.what());
      failed = true;
      continue;
    }
    const Trial::Timing& timing = trial.timing();
    failed = failed || timing.seconds <= 0 || !trial.failures().empty();
    fmt::print("{:<60} {:>9.3f} ms", title(bench), timing.seconds * 1e3);
    if (const auto flops = static_cast<double>(timing.footprint.executed_flops); flops > 0) {
      const double rate = bench.description.find("bf16") == std::string::npos ? f32_rate : bf16_rate;
      fmt::print(" {:>8.1f} GFLOP/s {:>4.0f}%\n", flops / timing.seconds / 1e9, 100 * flops / timing.seconds / rate);
    } else {
      const double bytes = static_cast<double>(timing.footprint.bytes_moved) / timing.seconds;
      fmt::print(" {:>8.1f} GB/s    {:>4.0f}%\n", bytes / 1e9, 100 * bytes / bandwidth);
    }
  }
  return failed ? 1 : 0;
}

// Lists the ops for callers that run each in its own process, which a device fault of another does not affect.
int list_ops() {
#define GPTRAIN_PRINT_OP(Op) fmt::print("{}\n", Op::name);
  GPTRAIN_FOR_EACH_OP(GPTRAIN_PRINT_OP)
#undef GPTRAIN_PRINT_OP
  return 0;
}

int run_suite(const Options& options) {
  if (options.list_ops) return list_ops();
  if (!options.instruction_set.empty() && options.instruction_set != select_kernels().name) {
    fmt::print("skipped: this machine runs the {} kernels, not {}\n", select_kernels().name, options.instruction_set);
    return exit_skipped;
  }
  if (!options.matrix_kernels.empty() && !choose_matrix_kernels(options.matrix_kernels)) {
    fmt::print("skipped: this machine cannot run the matrix kernels \"{}\"\n", options.matrix_kernels);
    return exit_skipped;
  }
  Suite suite(options.backend == "cuda");
  for (const auto add_cases : registrations()) add_cases(suite);
  if (options.backend == "cuda" && num_cuda_devices() == 0) {
    fmt::print("skipped: there is no CUDA device\n");
    return exit_skipped;
  }
  BackendUnderTest backend = options.backend == "cuda" ? cuda_backend(options) : cpu_backend(false);
  if (options.bench) return run_benches(suite, backend, options);
  const int status = run_checks(suite, backend, options);
  if (options.backend == "cuda") return status;
  BackendUnderTest thread_independent = cpu_backend(true);
  const int of_linears = run_checks(suite, thread_independent, options);
  return of_linears == 0 || of_linears == exit_skipped ? status : of_linears;
}

}  // namespace

Registration::Registration(void (*add_cases)(Suite&)) { registrations().push_back(add_cases); }

}  // namespace gptrain::ops_test

int main(int argc, char** argv) {
  using namespace gptrain::ops_test;
  CLI::App app{"Checks and benches every op of every backend"};
  Options options;
  app.add_option("--filter", options.filter, "only cases whose \"op [description]\" contains this");
  app.add_option("--op", options.op, "only cases of the op of this name");
  app.add_flag("--bench", options.bench, "measure instead of checking");
  app.add_option("--seed", options.seed, "seed of the operands");
  app.add_option("--backend", options.backend, "cpu or cuda; skipped (77) where there is no CUDA device")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--repeats", options.repeats, "times that an op runs on cuda, whose bits are compared")
      ->check(CLI::PositiveNumber);
  app.add_option("--every", options.every, "of the cases that are left, the first of every N")
      ->check(CLI::PositiveNumber);
  app.add_option("--of-each-kind", options.of_each_kind,
                 "of the cases whose descriptions differ in numbers only, N from the first to the last");
  app.add_flag("--list-ops", options.list_ops, "print the names of all ops, and do nothing else");
  app.add_flag("--without-f16", options.without_f16, "skip what the CPU backend skips: cases in f16");
  app.add_option("--instruction-set", options.instruction_set,
                 "the kernels that must run (x86-64, x86-64-v3, x86-64-v4); skipped (77) where others do");
  app.add_option("--matrix-kernels", options.matrix_kernels,
                 "only ops of these kernels, run by: amx, whose instructions are emulated on a CPU that lacks them "
                 "(skipped where it lacks AVX512-BF16), or substituted, the same in plain C++")
      ->check(CLI::IsMember({"amx", "substituted"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  // Line buffering shows how far a hanging process came when it is killed.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  return run_suite(options);
}
