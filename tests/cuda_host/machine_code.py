"""Reads the machine code of CUDA kernels out of object files: sm_80 to sm_90, whose instructions have 16 bytes. No tool
of CUDA's is needed. Fields of an instruction, as nvdisasm shows them: bits 0 to 8 the operation, 9 to 11 the form of
its operands, 16 to 23, 24 to 31, 32 to 39 and 64 to 71 registers, 73 to 75 the size of a memory access; of a branch's
offset in units of four bytes the lower 8 bits at 16, the others at 34.
"""
import re
import struct
import subprocess
from dataclasses import dataclass, field

FATBIN_MAGIC = 0xBA55ED50
CUBIN = 2  # kind of a fatbin's entry; others are PTX
MACHINE_CUDA = 190  # of an ELF header

LDG, STG, LDL, STL = 0x181, 0x186, 0x183, 0x187
DADD, DFMA, HMMA, BRA = 0x029, 0x02B, 0x03C, 0x147
WRITES_NOTHING = {STG, STL, BRA, 0x188, 0x14D, 0x145, 0x141, 0x11D, 0x118}  # and STS, EXIT, BSSY, BSYNC, BAR, NOP
SIZE_64, SIZE_128 = 5, 6


class Compressed(Exception):
    """The object's machine code is compressed."""


@dataclass
class Kernel:
    name: str
    words: tuple = field(repr=False)  # two of 64 bits for each instruction

    def count(self, operation, size=None):
        return sum(1 for low, high in zip(self.words[::2], self.words[1::2])
                   if low & 0x1FF == operation and size in (None, high >> 9 & 7))

    def local(self):
        """Returns the number of accesses to local memory: spilled registers and stacks."""
        return self.count(LDL) + self.count(STL)

    def loops(self):
        """Returns the first and last instruction of each loop: those that a branch backwards encloses."""
        jumps = [(jump_of(i, self.words[2 * i], self.words[2 * i + 1]), i) for i in range(len(self.words) // 2)
                 if self.words[2 * i] & 0x1FF == BRA]
        return [(first, last) for first, last in jumps if 0 <= first < last]

    def has_f64_sums(self):
        return any(low & 0x1FF in (DADD, DFMA) for low in self.words[::2])

    def longest_sum(self):
        """Returns the most f64 additions in a row that wait for each other, each instruction taken once."""
        return walk(self.words, {})[1] if self.has_f64_sums() else 0

    def carried_sums(self):
        """Returns the most f64 additions by which a loop's trip depends on the trip before."""
        most = 0
        for first, last in self.loops() if self.has_f64_sums() else []:
            body = self.words[2 * first:2 * last + 2]
            once, _ = walk(body, {})
            twice, _ = walk(body, once)
            most = max([most] + [twice[register] - once.get(register, 0) for register in twice])
        return most


def jump_of(i, low, high):
    """Returns the index of the instruction to which branch i jumps."""
    quarters = (low >> 34 | (high & 0x3FFFF) << 30) << 8 | low >> 16 & 255
    return i + 1 + (quarters - (1 << 56) if quarters >> 55 else quarters) // 4


def walk(words, before):
    """Returns by register the length of the chain of f64 additions that made it, and the longest."""
    chain, longest = dict(before), 0
    for low, high in zip(words[::2], words[1::2]):
        operation, target = low & 0x1FF, low >> 16 & 255
        if operation in (DADD, DFMA):
            sources = [low >> 24 & 255, high & 255]
            if operation == DFMA and low >> 9 & 7 == 1:
                sources.append(low >> 32 & 255)
            chain[target] = 1 + max(chain.get(source, 0) for source in sources)
            longest = max(longest, chain[target])
        elif operation not in WRITES_NOTHING:
            chain.pop(target, None)
    return chain, longest


def cubins(data):
    """Yields the ELF files in an object's fatbins."""
    at = data.find(struct.pack("<I", FATBIN_MAGIC))
    while at >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, at)
        entry, end = at + header, at + header + size
        while entry < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, entry)
            if kind == CUBIN:
                yield data[entry + entry_header:entry + entry_header + entry_size]
            entry += entry_header + entry_size
        at = data.find(struct.pack("<I", FATBIN_MAGIC), end)


def sections(elf):
    """Yields (name, bytes) of an ELF file's sections."""
    table, = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    start = headers[names][4]
    for name, _, _, _, offset, length in headers:
        yield elf[start + name:elf.index(b"\0", start + name)].decode(), elf[offset:offset + length]


def plain(name):
    """Returns a demangled name without namespaces and parameters."""
    name = re.sub(r"\(anonymous namespace\)::|gptrain::|cuda::|attention::|ops::|base::|^void ", "", name)
    depth = 0
    for i, letter in enumerate(name):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return name[:i]
    return name


def kernels_of(files, architecture):
    """Returns the kernels that the objects hold for an architecture (90: 9.0)."""
    found = []
    for file in files:
        with open(file, "rb") as opened:
            data = opened.read()
        for elf in cubins(data):
            if not elf.startswith(b"\x7fELF"):
                raise Compressed(file)
            machine, = struct.unpack_from("<H", elf, 18)
            flags, = struct.unpack_from("<I", elf, 48)
            if machine != MACHINE_CUDA or flags >> 8 & 255 != architecture:
                continue
            found += [(name[len(".text."):], text) for name, text in sections(elf) if name.startswith(".text.")]
    names = subprocess.run(["c++filt"], input="\n".join(name for name, _ in found), capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return [Kernel(plain(name), struct.unpack(f"<{len(text) // 8}Q", text)) for name, (_, text) in zip(names, found)]
