// The program: parses the command line and runs the command.
#pragma once

namespace gptrain::inline cli {

// Runs the command that the arguments name and returns the exit code of the process. Throws nothing: errors are printed
// as messages. May restart the executable (environment.h). REQUIRES: called first in main.
int run_program(int argc, char** argv);

}  // namespace gptrain::cli
