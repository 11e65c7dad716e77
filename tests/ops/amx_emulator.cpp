#include "amx_emulator.h"

#include <csignal>
#include <cstdint>
#include <cstring>
#include <sys/ucontext.h>

#include "ops/cpu/kernels/amx_tiles.h"

namespace gptrain::ops_test {
namespace {

static_assert(!tile_products, "this file has the substitute's tiles");

// An instruction in three-byte VEX encoding that names tiles or memory.
struct Instruction {
  uint8_t prefix;  // 0 none, 1 66, 2 F3, 3 F2
  uint8_t opcode;
  int reg, second, rm;  // ModRM.reg, VEX.vvvv, ModRM.rm
  bool memory;
  std::byte* base;  // with the displacement
  int64_t index;    // scaled
  int64_t length;
};

int64_t general_register(const gregset_t& registers, int number) {
  constexpr int order[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                           REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return registers[order[number]];
}

int64_t displacement_at(const uint8_t* code, int bytes) {
  if (bytes == 1) return static_cast<int8_t>(*code);
  int32_t value = 0;
  std::memcpy(&value, code, static_cast<size_t>(bytes));
  return value;
}

// Returns false for any other encoding.
bool decode(const gregset_t& registers, Instruction& result) {
  const auto* const code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  constexpr int map_0f38 = 2;
  if (code[0] != 0xC4 || (code[1] & 31) != map_0f38) return false;
  const auto extended = [&](int bit, int low) { return low + ((code[1] >> bit & 1) == 0 ? 8 : 0); };
  const int mode = code[4] >> 6, rm = code[4] & 7;
  result = {.prefix = static_cast<uint8_t>(code[2] & 3),
            .opcode = code[3],
            .reg = code[4] >> 3 & 7,
            .second = ~(code[2] >> 3) & 15,
            .rm = rm,
            .memory = mode != 3,
            .base = nullptr,
            .index = 0,
            .length = 5};
  if (!result.memory) return true;
  const int displacement_bytes = mode == 1 ? 1 : mode == 2 ? 4 : 0;
  int base = extended(5, rm);
  if (mode == 0 && rm == 5) {  // relative to the next instruction
    result.length += 4;
    result.base = reinterpret_cast<std::byte*>(registers[REG_RIP] + result.length + displacement_at(code + 5, 4));
    return true;
  }
  if (rm == 4) {
    const int index = extended(6, code[5] >> 3 & 7);
    if (index != 4) result.index = general_register(registers, index) << (code[5] >> 6);
    base = extended(5, code[5] & 7);
    if (mode == 0 && (base & 7) == 5) return false;  // no base: compilers do not emit this for tiles
    ++result.length;
  }
  const int64_t displacement = displacement_bytes > 0 ? displacement_at(code + result.length, displacement_bytes) : 0;
  result.base = reinterpret_cast<std::byte*>(general_register(registers, base) + displacement);
  result.length += displacement_bytes;
  return true;
}

bool is_full_configuration(const std::byte* at) {
  if (static_cast<int>(at[0]) != 1) return false;
  for (size_t tile = 0; tile < 8; ++tile) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, at + 16 + 2 * tile, sizeof(row_bytes));
    if (row_bytes != 64 || static_cast<int>(at[48 + tile]) != 16) return false;
  }
  return true;
}

// Executes an instruction. Returns false if it is not one of amx_tiles.h, or would stop the program on a CPU with AMX.
bool carry_out(const Instruction& instruction) {
  constexpr uint8_t none = 0, f3 = 2, f2 = 3;
  const auto is = [&](uint8_t opcode, uint8_t prefix, bool memory) {
    return instruction.opcode == opcode && instruction.prefix == prefix && instruction.memory == memory;
  };
  const int64_t stride = instruction.index / 4;
  if (is(0x49, none, true)) {
    if (!is_full_configuration(instruction.base + instruction.index)) return false;
    configure_tiles();
  } else if (is(0x49, none, false)) {
    release_tiles();
  } else if (!tile_registers.configured) {
    return false;
  } else if (is(0x49, f2, false)) {
    tile_registers.zero(instruction.reg);
  } else if (is(0x4B, f2, true)) {
    tile_registers.load(instruction.reg, instruction.base, stride);
  } else if (is(0x4B, f3, true)) {
    tile_registers.store(instruction.reg, instruction.base, stride);
  } else if (is(0x5C, f3, false)) {
    tile_registers.multiply(instruction.reg, instruction.rm, instruction.second);
  } else {
    return false;
  }
  return true;
}

void on_refused(int, siginfo_t*, void* context) {
  gregset_t& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction instruction;
  if (decode(registers, instruction) && carry_out(instruction)) {
    registers[REG_RIP] += instruction.length;
  } else {
    std::signal(SIGILL, SIG_DFL);  // the instruction then fails again
  }
}

}  // namespace

void emulate_amx() {
  struct sigaction action = {};
  action.sa_sigaction = on_refused;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
}

}  // namespace gptrain::ops_test
