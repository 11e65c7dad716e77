// AMX on an x86-64 CPU without it.
#pragma once

namespace gptrain::ops_test {

// From now on the instructions that kernels/amx_tiles.h names, which this CPU refuses, are carried out by the handler of
// SIGILL, on tiles of each thread. It reads the machine code, so that registers, addresses and the order of loads and
// stores are those of a CPU with AMX. Other instructions that the CPU refuses end the program as before.
void emulate_amx();

}  // namespace gptrain::ops_test
