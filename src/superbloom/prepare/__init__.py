"""Readers: your files → a corpus folder. Nothing here imports torch.

    sequences.py     lines of names
    interactions/    logs of users and items
    wikipedia/       the links of MediaWiki dumps (Sec. 3)
    text/            natural language (Sec. 4)
    synthetic/       made-up worlds, whose best possible recall is known
    corpus.py        the Corpus that users import, also from DataFrames
    bundled.py       the built-in corpus

    report.py        what a reader returns
    files.py         open files in any compression
    scratch.py       temporary folders and arrays in files
    workers.py       a pool of processes
    duck.py          DuckDB
    spark.py         Spark

Every reader is prepare_x(files, out, options=None, *, notice=…, watch=…, **single_options) -> Report. It locks the
folder `out`, writes it whole or not at all, and reports what it read and left out.
"""
