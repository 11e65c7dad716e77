#!/usr/bin/env python3
"""Parquet files as JSON lines on standard output, for `gptrain data pack -`.

Run as parquet_to_jsonl.py [--field text] FILE... Needs pyarrow (python3 -m pip install pyarrow). Files are read in pieces, so
that they may be larger than memory.
"""
import argparse
import json
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--field", default="text", help="the column that holds the text")
    parser.add_argument("files", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    try:
        from pyarrow import parquet
    except ImportError:
        sys.exit("parquet_to_jsonl.py: no pyarrow; python3 -m pip install pyarrow")
    for name in arguments.files:
        file = parquet.ParquetFile(name)
        if arguments.field not in file.schema_arrow.names:
            sys.exit(f"parquet_to_jsonl.py: {name}: no column {arguments.field!r}; there are "
                     f"{', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(batch_size=1024, columns=[arguments.field]):
            for text in batch.column(0).to_pylist():
                if text is not None:
                    sys.stdout.write(json.dumps({arguments.field: text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
