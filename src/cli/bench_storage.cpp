// gptrain bench storage
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/output.h"
#include "base/output_file.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/option_checks.h"
#include "config/run_config.h"
#include "machine/profiles.h"
#include "planner/measure_storage.h"

namespace gptrain::inline cli {
namespace {

struct StorageArguments {
  std::string folders;
  std::string into;
  int64_t bytes = int64_t{256} << 20;
};

void print_disk(const MeasuredDisk& row) {
  print_out("{:>10}{:>8}{:>14.2f}{:>14.2f}{:>14.2f}\n", format_bytes(static_cast<double>(row.transfer_bytes)),
            row.depth, row.read_bytes_per_second / 1e9, row.write_bytes_per_second / 1e9,
            row.both_bytes_per_second / 1e9);
  std::fflush(stdout);
}

void bench_storage(const StorageArguments& arguments) {
  if (!arguments.into.empty()) {
    find_machine(arguments.into);
    check_can_write(arguments.into, ExitCode::usage);
  }
  MemoryConfig memory;
  memory.disk_path = arguments.folders;
  StorageOptions options;
  options.bytes = arguments.bytes;
  for (const std::string& folder : memory.disk_folders()) options.folders.emplace_back(folder);
  print_out("{:>10}{:>8}{:>14}{:>14}{:>14}\n", "transfer", "depth", "read GB/s", "write GB/s", "both GB/s");
  const StorageResult result = measure_storage(options, print_disk);
  const MeasuredDisk best = best_of(result.rows);
  print_out("best, by {}:\n", result.method);
  print_disk(best);
  if (arguments.into.empty()) return;
  MeasuredMachine machine = find_machine(arguments.into);
  machine.disk = best;
  AtomicFile file(arguments.into);
  file.write(machine_text(machine, "measured: gptrain bench"));
  file.commit();
  print_out("{}: disk added\n", arguments.into);
}

}  // namespace

void add_bench_storage_command(CLI::App& bench) {
  auto arguments = std::make_shared<StorageArguments>();
  CLI::App* storage = bench.add_subcommand("storage", "measure the speed of drives for memory.disk_path");
  storage->add_option("FOLDERS", arguments->folders, "folder, or several on different drives, separated by ':'")
      ->required()
      ->check(some_text());
  storage->add_option("--bytes", arguments->bytes, "bytes that each row writes and reads (default: 268435456)")
      ->check(whole_number_from(1))
      ->type_name("N");
  storage->add_option("--into", arguments->into, "add the best row to this profile from bench device")
      ->check(some_text())
      ->type_name("FILE");
  set_examples(storage, {"gptrain bench storage . --bytes 1048576"});
  storage->callback([arguments] { bench_storage(*arguments); });
}

}  // namespace gptrain::cli
