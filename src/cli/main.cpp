#include "cli/command_line.h"

int main(int argc, char** argv) { return gptrain::run_program(argc, argv); }
