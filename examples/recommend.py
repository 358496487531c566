# %% [markdown]
# # Recommendations from a log of events
#
# Any table with a user, an item and optionally a time works. This one is made of the built-in Wikipedia links: a page
# is a "user", the articles it links to are its "items", and the position of a link in the page is its "time".

# %%
import os

import pandas as pd

from superbloom import Corpus, Superbloom
from superbloom.prepare.bundled import LINKS
from superbloom.prepare.sequences import read_sequences

log = pd.DataFrame(
    [(page, item, place) for page, items in read_sequences([LINKS], keyed=True) for place, item in enumerate(items)],
    columns=["page", "article", "place"],
)
minutes = float(os.environ.get("MINUTES", 3))
print(log.sample(5, random_state=0).to_string(index=False))

# %% [markdown]
# One row per user, in the order of time. The last item of each row is for the test, the one before it for validation.

# %%
corpus = Corpus.from_interactions(log, user="page", item="article", time="place", max_names=2_000)
print(corpus)

# %%
model = Superbloom(preset="sequence", alpha=4, seq_len=20).fit(corpus, minutes=minutes, quiet=True)
figures = model.evaluate(corpus, rows=500)
print(f"HR@10 {figures['recall']['10']['value']:.3f}, NDCG@10 {figures['ndcg']['10']:.3f}")
print(f"co-occurrence: HR@10 {figures['yardsticks']['co-occurrence']['10']['value']:.3f}")

# %% [markdown]
# For users of the log, without the items they already have; for a history that is not in the log; and the
# items that are most similar to one.

# %%
print(model.recommend(["Bob Dylan", "Frankenstein"], k=3).to_string(index=False))
print(model.recommend_for([["Jazz", "Blues", "Guitar"]], k=3).to_string(index=False))
print(model.similar_items(["Denmark"], k=3).to_string(index=False))

# %% [markdown]
# Add a new item after training: it gets its own digest at once, in buckets of the items it is like.

# %%
model.extend(["Roskilde Festival"], like={"Roskilde Festival": ["Denmark", "Jazz"]})
print(model.recommend_for([["Roskilde Festival", "Copenhagen"]], k=3).to_string(index=False))
