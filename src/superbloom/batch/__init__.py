"""Answers for many users: histories in, a table of recommendations out, in one process or in many.

arrow.py       recommend_arrow: histories in Arrow → recommendations in Arrow. Every engine calls it.
sources.py     a corpus, a log or a table of histories → batches of histories
lists.py       the files of rules: allowed and excluded items, categories, titles
local.py       a pool of processes on this machine
spark.py       Spark
tables.py      a CSV or Parquet file, written while the answers come
"""

from superbloom.batch.arrow import ArrowRecommender, recommend_arrow

__all__ = ["ArrowRecommender", "recommend_arrow"]
