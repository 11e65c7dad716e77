#!/usr/bin/env python3
"""Splits a text into OUT/train.txt and OUT/heldout.txt: one block of text in twenty is held out.

    tools/prepare_corpus.py --format gcide|plain INPUT OUT

gcide: the dictd text of the Collaborative International Dictionary of English; drops headers, source tags,
pronunciations and link braces, and joins hard line breaks. plain: UTF-8 text unchanged. Blocks are contiguous and end
between dictionary entries or paragraphs, so that no held-out passage is partly in the training text; the held-out ones
are spread over the whole text.
"""
import argparse
import os
import re
import sys

BLOCKS = 1000  # at most; a small text has fewer, of at least MIN_BLOCK characters
MIN_BLOCK = 2048
HELD_OUT = 20  # one block in this many

PRONUNCIATION = re.compile(r" \\[^\\]+\\(?: \([^()]*\))?")
SOURCE_TAG = re.compile(r" ?\[(?:1913 Webster|Webster 1913 Suppl\.|WordNet 1\.5|PJC)[^\]]*\]")
ACCENT = re.compile(r"\[[^\w\s\]]*([A-Za-z]{1,2}?)(?:mac|um)?[^\w\s\].]*\]")  # matches [=a], [ae], [imac]; not [L.]


def gcide_entries(text):
    """Returns the dictionary's entries as text, one line per paragraph."""
    start = re.search(r"^\S[^\\\n]* \\[^\\\n]+\\", text, re.MULTILINE)
    if not start:
        sys.exit("error: this is not the dictd text of GCIDE: it holds no headword")
    # A headword starts in the first column; the rest of its entry is indented.
    for entry in re.split(r"\n+(?=\S)", text[start.start():]):
        paragraphs = []
        for paragraph in re.split(r"\n\s*\n", entry):
            line = " ".join(paragraph.split())
            line = SOURCE_TAG.sub("", PRONUNCIATION.sub("", line, count=1) if not paragraphs else line)
            line = ACCENT.sub(r"\1", line).replace("{", "").replace("}", "")
            if line.strip():
                paragraphs.append(line.strip())
        if paragraphs:
            yield "\n".join(paragraphs) + "\n\n"


def plain_paragraphs(text):
    """Yields paragraphs with their ends; in a text without blank lines, its lines."""
    separator = r"(?<=\n)\n+" if "\n\n" in text else r"\n"
    start = 0
    for match in re.finditer(separator, text):
        yield text[start:match.end()]
        start = match.end()
    if start < len(text):
        yield text[start:]


def split_blocks(pieces, block_size):
    """Joins pieces to blocks of at least block_size characters."""
    block, size = [], 0
    for piece in pieces:
        block.append(piece)
        size += len(piece)
        if size >= block_size:
            yield "".join(block)
            block, size = [], 0
    if block:
        yield "".join(block)


def write_whole(path, parts):
    """Writes through a temporary file, so that PATH is either complete or absent."""
    with open(path + ".tmp", "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.writelines(parts)
    os.replace(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=["gcide", "plain"], required=True)
    parser.add_argument("input")
    parser.add_argument("out")
    arguments = parser.parse_args()

    # Bytes that are not UTF-8 pass through unchanged: the tokenizer works on bytes.
    with open(arguments.input, encoding="utf-8", errors="surrogateescape", newline="") as file:
        text = file.read()
    pieces = list(gcide_entries(text) if arguments.format == "gcide" else plain_paragraphs(text))
    total = sum(map(len, pieces))
    blocks = list(split_blocks(pieces, max(MIN_BLOCK, total // BLOCKS)))
    if len(blocks) < 2:
        sys.exit(f"error: {arguments.input} is too short to hold anything out: {total} characters, "
                 f"at least {2 * MIN_BLOCK} in several paragraphs or lines are needed")
    # Holds out the second block of every twenty, so that a short text has one too.
    heldout = [block for i, block in enumerate(blocks) if i % HELD_OUT == 1]
    train = [block for i, block in enumerate(blocks) if i % HELD_OUT != 1]
    os.makedirs(arguments.out, exist_ok=True)
    write_whole(os.path.join(arguments.out, "heldout.txt"), heldout)
    write_whole(os.path.join(arguments.out, "train.txt"), train)
    print(f"{sum(map(len, train)):,} characters to train on, {sum(map(len, heldout)):,} held out "
          f"({len(heldout)} of {len(blocks)} blocks)")


if __name__ == "__main__":
    main()
