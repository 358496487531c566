"""Examples that --help shows for each command."""

from __future__ import annotations

EXAMPLES = {
    "demo": ["superbloom demo", "superbloom demo --minutes 1 --out quick-look"],
    "wikipedia": [
        "superbloom prepare wikipedia enwiki-latest-pages-articles.xml.bz2 --out wiki",
        "superbloom prepare wikipedia dump.xml.bz2 --out wiki --max-entities 100000",
    ],
    "sequences": [
        "superbloom prepare sequences playlists.tsv.gz --out playlists",
        "superbloom prepare sequences pages.tsv --keyed --min-count 5 --out pages",
    ],
    "interactions": [
        "superbloom prepare interactions ratings.csv --user user_id --item item_id --time timestamp --out shop",
        "superbloom prepare interactions events/ --time ts --out shop",
        "superbloom prepare interactions sequences.txt --format lines --out shop",
    ],
    "synthetic": [
        "superbloom prepare synthetic --out world",
        "superbloom prepare synthetic --out world --countries 300 --rows 100000",
    ],
    "text": [
        "superbloom prepare text articles.txt --out articles --min-count 2",
        "superbloom prepare text wiki-extracted/ --out articles --min-count 5",
    ],
    "train": [
        "superbloom train wiki --out wiki-model --minutes 30",
        "superbloom train shop --out shop-model --preset sequence --minutes 20",
        "superbloom train shop --out shop-model --resume",
    ],
    "evaluate": [
        "superbloom evaluate wiki-model wiki",
        "superbloom evaluate shop-model shop --out report",
    ],
    "predict": [
        'superbloom predict wiki-model "Miles Davis" "[MASK]" -k 5',
        'superbloom predict wiki-model "Miles Davis" --explain',
        'superbloom predict text-model --text "Miles Davis plays [MASK]."',
    ],
    "similar": [
        'superbloom similar wiki-model "Miles Davis"',
        "superbloom similar --server http://127.0.0.1:8000 Jazz Piano",
    ],
    "serve": ["superbloom serve wiki-model", "superbloom serve wiki-model --port 9000 --workers 2"],
    "recommend": [
        "superbloom recommend shop-model shop --user 17 -k 5",
        "superbloom recommend shop-model newer.csv --user user_id --item item_id --out answers.csv",
        "superbloom recommend shop-model log/ --engine spark --master spark://HOST:7077 --out answers",
    ],
    "extend": [
        "superbloom extend shop-model --corpus newer --out shop-model-2",
        "superbloom extend shop-model new-items.txt --out shop-model-2",
    ],
    "inspect": ["superbloom inspect wiki", 'superbloom inspect wiki-model "Miles Davis"'],
    "plan": ["superbloom plan --ids 20000", "superbloom plan --ids 5300000 --memory 16GB --minutes 600"],
    "reproduce": [
        "superbloom reproduce wiki --out paper --budget 3h",
        "superbloom reproduce wiki --out paper --only table3",
        "superbloom reproduce --lab --out lab --budget 16h",
    ],
}


def epilog(command: str) -> str:
    """The examples as Typer takes them: a blank line ends a line."""
    return "\n\n".join(["Examples:", *(f"  {line}" for line in EXAMPLES[command])])
