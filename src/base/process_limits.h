// Limits of the process (ulimit) that libraries answer with a crash: they are raised or checked beforehand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gptrain::inline base {

// Raises the soft limits of open files and of stacks towards the hard ones. Returns the fault if stacks or the number
// of files that can be opened stay too small for the program; empty: none. REQUIRES: called before the first thread
// starts.
std::string raise_process_limits();

// THROWS Error(machine) unless the process can open the files of a run with `ranks` ranks in this process.
void require_open_files(int64_t ranks);

// THROWS Error(machine) unless the process may have `bytes` more of address space and of data (ulimit -v, -d).
void require_address_space(int64_t bytes);

// Returns true if the process may write files of any size.
bool may_write_all_sizes();

// THROWS Error(machine) unless the process may write files of `bytes` (ulimit -f). `file`: which of its files is that
// large, for the message.
void require_file_size(int64_t bytes, std::string_view file);

}  // namespace gptrain::base
