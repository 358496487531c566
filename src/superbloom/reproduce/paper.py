"""The numbers that the paper printed, recall at 1, 10 and 20 in per cent, and the queries of Appendices E and F."""

from __future__ import annotations

TABLE_2 = {
    "baseline": (36.2, 63.1, 68.2),
    "sampled-softmax": (3.1, 36.2, 55.1),
    "superbloom": (51.1, 72.3, 76.5),
}
TABLE_3 = {
    "baseline-l1": (51.0, 70.4, 75.5),
    "baseline-deep": (55.0, 73.7, 77.3),
    "superbloom-l1": (17.8, 35.8, 42.6),
    "superbloom-wide-l1": (30.6, 52.9, 58.7),
    "superbloom-deep": (43.4, 60.1, 64.0),
}
TABLE_5 = {
    "baseline-h64": (28.4, 44.9, 48.6),
    "hash40-h512": (31.7, 48.3, 52.9),
    "baseline-h256": (37.2, 57.4, 63.3),
    "hash20-h1024": (39.2, 58.5, 64.5),
}
TABLE_6 = {1: (53.0, 56.0, 56.0), 10: (53.2, 68.2, 69.1), 20: (53.2, 67.9, 71.0), 100: (53.2, 67.8, 71.5)}
# (α, number of coherent functions out of two): (token recall@1, entity recall@1)
TABLE_7 = {
    (10, 0): (36.32, 52.50),
    (10, 1): (38.19, 50.20),
    (10, 2): (38.55, 34.70),
    (20, 0): (33.39, 43.70),
    (20, 1): (36.98, 41.10),
    (20, 2): (37.65, 30.20),
}
APPROXIMATE_SPEEDUP = 10  # Sec. 2.5: approximate inference over exhaustive scoring, 5.3 million ids, α=50
TOP_100_PERCENT, TOP_TENTH_PERCENT = 3.8, 60.0  # Sec. 3.1: share of all links that lead to the most frequent pages

# Appendix E.
CONTEXTS = (
    ("Copenhagen",),
    ("Copenhagen", "Aarhus"),
    ("Copenhagen", "Paris"),
    ("Copenhagen", "Dynasty"),
    ("Copenhagen", "Dynasty", "Danish language"),
    ("Miles Davis",),
    ("John Coltrane",),
    ("Miles Davis", "John Coltrane"),
    ("Miles Davis", "Thailand"),
    ("Texas", "Austin, Texas", "Florida"),
    ("Tunisia", "Tunis", "Thailand"),
)
# For the analogy of Appendix E, Tunisia Tunis Thailand → Bangkok, with more countries: each follows the one before.
CAPITALS = (
    ("Tunisia", "Tunis"),
    ("Thailand", "Bangkok"),
    ("France", "Paris"),
    ("Germany", "Berlin"),
    ("Spain", "Madrid"),
    ("Italy", "Rome"),
    ("Russia", "Moscow"),
    ("Japan", "Tokyo"),
    ("Austria", "Vienna"),
    ("Egypt", "Cairo"),
    ("Greece", "Athens"),
    ("Denmark", "Copenhagen"),
    ("Norway", "Oslo"),
    ("Sweden", "Stockholm"),
    ("Finland", "Helsinki"),
    ("Poland", "Warsaw"),
    ("Hungary", "Budapest"),
    ("Portugal", "Lisbon"),
    ("Belgium", "Brussels"),
    ("Cuba", "Havana"),
    ("Iraq", "Baghdad"),
    ("Iran", "Tehran"),
    ("Turkey", "Ankara"),
    ("South Korea", "Seoul"),
)
# Appendix F.
SENTENCES = (
    "Miles Davis is a Jazz musician, he is similar to [MASK].",
    "Empire state building is an iconic site of [MASK1] , it is close to [MASK2] .",
)
