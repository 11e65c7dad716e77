// The standard streams as a whole: missing ones, and output that was lost (output.h).
#pragma once

#include <string>

namespace gptrain::inline base {

// Opens each of the descriptors 0, 1 and 2 that is closed, so that no file of the program gets that number. Reading
// such a stdin gives end of file; writing to stdout fails, so that flush_out reports the lost output; stderr is
// discarded. REQUIRES: called before any file is opened.
void open_missing_standard_streams();

// Flushes standard output. Returns "" if all output so far was written, else the system's reason.
std::string flush_out();

// Discards further standard output. Call once its reader is gone.
void give_up_out();

}  // namespace gptrain::base
