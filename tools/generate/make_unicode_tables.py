#!/usr/bin/env python3
"""Writes unicode_classes.inc, nfc_combining.inc and nfc_decompositions.inc of src/data/tokenizer.

    tools/generate/make_unicode_tables.py SOURCE_ROOT      (needs the Python packages tiktoken and tokenizers)

The class of a code point is the one by the regular expressions of tiktoken and of Hugging Face tokenizers, which must
agree; a Unicode library of another version would split texts elsewhere. The NFC tables come from Python's unicodedata,
for every code point where Hugging Face's normalizer agrees.
"""
import sys
import unicodedata
from pathlib import Path

import tiktoken
from tokenizers import Regex, normalizers, pre_tokenizers

# In the order of enum class CharacterClass.
CLASSES = [r"\p{Lu}", r"\p{Lt}", r"\p{Ll}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{N}", r"[\r\n]", r"\s"]
CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
BLOCK = 4096
# More that patterns name. Where the two differ, which is in four code points of \\w, Hugging Face's counts.
PROPERTIES = {"P": r"\p{P}", "S": r"\p{S}", "Z": r"\p{Z}", "Nd": r"\p{Nd}", "word": r"\w", "Han": r"\p{Han}",
              "Hiragana": r"\p{Hiragana}", "Katakana": r"\p{Katakana}", "Hangul": r"\p{Hangul}", "Latin": r"\p{Latin}",
              "Greek": r"\p{Greek}", "Cyrillic": r"\p{Cyrillic}", "Arabic": r"\p{Arabic}", "Thai": r"\p{Thai}"}


def matches_of_tiktoken(pattern):
    encoding = tiktoken.Encoding("bytes", pat_str=pattern, mergeable_ranks={bytes([i]): i for i in range(256)},
                                 special_tokens={})
    return {character for first in range(0, len(CHARACTERS), BLOCK)
            for character in bytes(encoding.encode_ordinary("".join(CHARACTERS[first:first + BLOCK]))).decode()}


def matches_of_hugging_face(pattern):
    splitter = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return {character for first in range(0, len(CHARACTERS), BLOCK)
            for piece, _ in splitter.pre_tokenize_str("".join(CHARACTERS[first:first + BLOCK])) for character in piece}


def class_table():
    table = [0] * 0x110000
    for number, pattern in enumerate(CLASSES, 1):
        found = matches_of_tiktoken(pattern)
        if found != matches_of_hugging_face(pattern):
            sys.exit(f"tiktoken and tokenizers do not agree on {pattern}")
        for character in found:
            table[ord(character)] = table[ord(character)] or number
    return table


def property_ranges(pattern):
    """First and last code points of each range."""
    found = sorted(map(ord, matches_of_hugging_face(pattern)))
    ranges = []
    for code in found:
        if ranges and ranges[-1][1] + 1 == code:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return [code for pair in ranges for code in pair]


def write_properties(path):
    lines = ["// Ranges of code points, first and last, by property. Made by tools/generate/make_unicode_tables.py."]
    for name, pattern in PROPERTIES.items():
        line = f'{{"{name}", {{'
        for code in property_ranges(pattern):
            word = f"{code:#x},"
            if len(line) + len(word) > 116:
                lines.append(line)
                line = ""
            line += word
        lines.append(line + "}},")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write(path, comment, numbers, form="#x"):
    lines, line = [f"// {comment} Made by tools/generate/make_unicode_tables.py."], ""
    for number in numbers:
        word = f"{number:{form}},"
        if len(line) + len(word) > 120:
            lines.append(line)
            line = ""
        line += word
    path.write_text("\n".join([*lines, line]) + "\n", encoding="utf-8")


def runs(table):
    """Returns first << 4 | class for each run of equal classes."""
    return [code << 4 | value for code, value in enumerate(table) if code == 0 or table[code - 1] != value]


def main():
    folder = Path(sys.argv[1]) / "src" / "data" / "tokenizer"
    write(folder / "unicode_classes.inc", "Where each run of a class starts: code point << 4 | class.",
          runs(class_table()))
    write_properties(folder / "unicode_properties.inc")
    write_compatibility(folder / "nfkc_decompositions.inc")
    nfc = normalizers.NFC()
    for character in CHARACTERS:
        if nfc.normalize_str(character) != unicodedata.normalize("NFC", character):
            sys.exit(f"NFC of {ord(character):#x} is another in tokenizers than in unicodedata")
    combining = [ord(c) << 8 | unicodedata.combining(c) for c in CHARACTERS if is_combining(c)]
    write(folder / "nfc_combining.inc", "Combining classes that are not 0: code point << 8 | class.", combining)
    # Hangul syllables are computed and are in no table.
    decompositions = []
    for character in CHARACTERS:
        parts = unicodedata.decomposition(character).split()
        if not parts or parts[0].startswith("<"):
            continue
        pair = [int(part, 16) for part in parts]
        composes = unicodedata.normalize("NFC", "".join(map(chr, pair))) == character
        decompositions += [ord(character) | composes << 31, pair[0], pair[1] if len(pair) > 1 else 0]
    write(folder / "nfc_decompositions.inc", "Triples: code point (bit 31: also composed), first, second or 0.",
          decompositions)


def is_combining(character):
    """Whether Hugging Face's normalizer orders a mark by its class: it knows those of an older Unicode only."""
    own = unicodedata.combining(character)
    if not own:
        return False
    other = "\u0334" if own > 1 else "\u0345"  # of classes 1 and 240
    first, second = (character, other) if own > unicodedata.combining(other) else (other, character)
    return normalizers.NFD().normalize_str("a" + first + second)[1:] != first + second or own == 1


def write_compatibility(path):
    """As Hugging Face's normalizer has them, which is of an older Unicode than unicodedata."""
    nfkd, nfd, runs = normalizers.NFKD(), normalizers.NFD(), []
    for character in CHARACTERS:
        parts = nfkd.normalize_str(character)
        if parts != nfd.normalize_str(character):
            runs += [len(parts) << 24 | ord(character), *map(ord, parts)]
    write(path, "Full compatibility decompositions: count << 24 | code point, and so many code points.", runs, "d")


if __name__ == "__main__":
    main()
