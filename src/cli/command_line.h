// The program: its command line, and how it ends.
#pragma once

namespace gptrain {

// Runs the command that the words ask for; the exit code of the process. Errors have become messages. May start the
// executable over (environment.h), so nothing may have begun before it.
int run_program(int argc, char** argv);

}  // namespace gptrain
