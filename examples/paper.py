# %% [markdown]
# # The paper's queries
#
# Appendix E queries a model of all of Wikipedia: which entities go with Copenhagen, what completes Tunisia, Tunis,
# Thailand? This example asks a model of 259,996 entities the same, after some minutes of training on a laptop.

# %%
import os
from itertools import pairwise

from superbloom import Superbloom
from superbloom.prepare.bundled import bundled_corpus
from superbloom.reproduce.paper import CAPITALS, CONTEXTS

corpus = bundled_corpus()
model = Superbloom().fit(corpus, minutes=float(os.environ.get("MINUTES", 5)), quiet=True)

# %% [markdown]
# The ten best names for each context, without the names of the context.
# "certified" means: no other allowed name is more likely under this model.

# %%
for context in CONTEXTS:
    if all(name in corpus.vocab for name in context):
        found = model.predict(context, k=10, exclude_context=True)
        proof = "certified" if found[0].certified else "not certified"
        print(f"{', '.join(context)} →\n   {', '.join(answer.name for answer in found)} ({proof})")

# %% [markdown]
# The analogy for many countries: given a country, its capital and another country, at which rank is its capital?

# %%
for (country, capital), (other, right) in pairwise(CAPITALS):
    if all(name in corpus.vocab for name in (country, capital, other, right)):
        answers = [answer.name for answer in model.predict([country, capital, other], k=10, exclude_context=True)]
        rank = answers.index(right) + 1 if right in answers else "beyond 10"
        print(f"{country} : {capital} = {other} : {right}?  rank {rank}; first is {answers[0]}")
