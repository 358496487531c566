"""Wikipedia entity prediction (Sec. 3): from MediaWiki dumps of any wiki and language to a corpus of links.

    dump.py      a file → pieces that can be parsed apart from each other (bzip2.py: any stretch of a bzip2 file)
    parts.py     a piece → its pages and links, in files (wikitext.py: which links; words.py: in which language)
    merge.py     all parts → redirects followed, ids given, the corpus

Pieces are parsed by processes of their own (../workers.py). The parts are kept in OUT.parts until the corpus is
written, so that a run that was killed goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from superbloom.corpus import check_cuts
from superbloom.errors import InputError
from superbloom.prepare.wikipedia.dump import PIECE_BYTES, Dump
from superbloom.prepare.wikipedia.merge import Selection, merge
from superbloom.prepare.wikipedia.parts import TITLE, Parser, Parsing, Rules, check_length, write_part
from superbloom.prepare.wikipedia.wikitext import from_xml
from superbloom.prepare.workers import Pool
from superbloom.runtime import available_cores
from superbloom.storage import only_writer, write_atomically

GIB = 2**30
WORKER_BYTES = 300 * 2**20  # what a process takes at most
FORMAT = 1  # of the files in OUT.parts
TICKET = "parts.json"  # says of which files they are

# Why links are left out, in the order in which it is found out.
DROPPED = (
    "in other namespaces",
    "to other wikis",
    "that name no page",
    "of repeated titles",
    "to missing pages",
    "to redirects that end at no article",
    "to disambiguation pages",
    "to the page itself",
    "repeated on a page",
    "to entities left out",
)
# Of the links in English Wikipedia, as Sec. 3.1 of the paper tells.
PAPER_TOP_100, PAPER_TOP_TENTH = 0.038, 0.60


@dataclass
class Report:
    """What was read: counts, the shares of links that go to the most frequent targets, and what was damaged."""

    counts: dict[str, int] = field(default_factory=dict)
    top_100: float = 0.0
    top_tenth: float = 0.0
    damage: list[str] = field(default_factory=list)

    def table(self) -> list[tuple[str, str]]:
        """Rows of a number and what it counts."""
        counts = Counter(self.counts)
        rows = [(name, name) for name in ("pages", "articles", "redirects")]
        rows += [(name, name) for name in ("disambiguations", "repeated titles", "unreadable pages") if counts[name]]
        rows += [("links", "links written in articles")]
        rows += [(name, f"  left out {name}") for name in DROPPED if counts[name]]
        rows += [("kept", "links kept"), ("distinct targets", "distinct targets"), ("entities", "entities")]
        rows += [("rows", "rows: articles with links")]
        shares = [
            (f"{self.top_100:.1%}", f"of the links to the 100 most frequent entities (paper: {PAPER_TOP_100:.1%})"),
            (f"{self.top_tenth:.1%}", f"of the links to the most frequent tenth (paper: {PAPER_TOP_TENTH:.0%})"),
        ]
        return [(f"{counts[name]:,}", text) for name, text in rows] + shares


def prepare_wikipedia(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    open_links: bool = False,
    drop_repeats: bool = False,
    drop_disambiguations: bool = False,
    min_count: int = 1,
    max_names: int | None = None,
    strict: bool = False,
    workers: int | None = None,
    memory: int = 2 * GIB,
    notice: Callable[[str], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
) -> Report:
    """Write the corpus folder of such files: a row for each article, keyed by its title.

    open_links keeps links to pages that the files do not contain, as a slice of a dump needs. What precedes damage
    in a file is kept, unless strict. notice receives a line about anything left out; progress receives the number of
    bytes just done of the files as they lie on disk. memory bounds processes and tables; less makes it slower.
    """
    out = Path(out)
    check_cuts(min_count, max_names)
    files = [os.fspath(path) for path in paths]
    size = max(1, min(workers or available_cores(), (memory - GIB // 2) // WORKER_BYTES))
    folder = out.with_name(f"{out.name}.parts")
    selection = Selection(open_links, drop_repeats, min_count, max_names)
    with only_writer(out, "corpus"):
        start_or_continue(folder, files, drop_disambiguations, notice)
        try:
            report, parts = read_files(files, drop_disambiguations, strict, folder, size, progress)
            for line in report.damage:
                notice(line)
            corpus, counts = merge(folder, parts, selection, memory // 2, size)
        except InputError:
            if any(folder.glob("*.npz")):
                notice(f"what was read is kept in {folder} for the next run")
            else:
                remove(folder)
            raise
        if not open_links and counts["to missing pages"] > counts["kept"]:
            notice(f"{counts['to missing pages']:,} links lead to pages that are not in these files; --open keeps them")
        report.counts |= counts
        frequency = corpus.vocab.counts
        report.top_100 = float(frequency[:100].sum() / frequency.sum())
        report.top_tenth = float(frequency[: -(-len(frequency) // 10)].sum() / frequency.sum())
        source = ", ".join(Path(path).name for path in files)
        corpus.info = {"source": source, "min_count": min_count, "counted": report.counts}
        corpus.save(out)
        remove(folder)
    return report


def read_files(
    files: list[str], drop_disambiguations: bool, strict: bool, folder: Path, size: int, progress: Callable[[int], None]
) -> tuple[Report, list[str]]:
    """Parse all pieces of all files; return what was seen so far and the names of the parts."""
    counts: Counter[str] = Counter()
    damage: list[str] = []
    parts: list[str] = []
    with Pool(size, "run the command again with fewer --workers: it goes on where it stopped") as pool:
        for number, path in enumerate(files):
            with Dump(path, number, progress) as dump:
                parts += read_dump(dump, Rules(dump.site, drop_disambiguations), pool, folder, counts, damage)
            if strict and damage:
                raise InputError(f"{damage[0]}; without --strict what precedes it is kept")
    if not parts:
        reason = damage[0] if damage else f"no page was found in {', '.join(files)}"
        raise InputError(f"{reason}; give a pages-articles dump")
    return Report(dict(counts), damage=damage), parts


def start_or_continue(
    folder: Path, files: list[str], drop_disambiguations: bool, notice: Callable[[str], None]
) -> None:
    """Make the folder for the parts, empty unless it holds parts of these very files."""
    inputs: list[list[str | float]] = []
    for path in files:
        if Path(path).is_file():
            status = Path(path).stat()
            inputs.append([path, status.st_size, status.st_mtime_ns])
        else:
            inputs.append([path, os.getpid(), os.times().elapsed])  # a stream cannot be known again
    told = {"format": FORMAT, "pieces": PIECE_BYTES, "disambiguations": not drop_disambiguations, "files": inputs}
    content = json.dumps(told).encode()
    if folder.exists():
        if (folder / TICKET).is_file() and (folder / TICKET).read_bytes() == content:
            if done := sum(1 for _ in folder.glob("*.done")):
                notice(f"going on with {folder}: {done:,} pieces are done")
            return
        if any(TICKET not in entry.name for entry in folder.iterdir()) and not (folder / TICKET).is_file():
            raise InputError(f"{folder} is needed for unfinished work, but holds something else; move it away")
        remove(folder)
    folder.mkdir(parents=True)
    write_atomically(folder / TICKET, content)


def remove(folder: Path) -> None:
    """Remove the folder of parts, last of all what says that it is one: a kill in between leaves no stranger."""
    for entry in folder.iterdir():
        if TICKET not in entry.name:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.rmtree(folder)


def read_dump(
    dump: Dump, rules: Rules, pool: Pool, folder: Path, counts: Counter[str], notes: list[str]
) -> Iterator[str]:
    """Yield the names of the parts of a file, in order, among them those of the pages between two pieces.

    Pages are counted, and what was wrong is noted.
    """
    parser = Parser(rules)
    carry, offset, damage = b"", 0, None
    for piece, done in pool.run(Parsing(rules, folder), dump.pieces()):
        if dump.apart:
            dump.progress(piece.stop - piece.start)
        counts["pages"] += done.pages
        # Usually the head ends a page; but </page> itself may lie on both sides of a cut.
        between = carry + (done.tail if done.head is None else done.head)
        end = between.rfind(b"</page>") + len(b"</page>")
        if end >= len(b"</page>"):
            part = parser.part(between, 0, end)
            yield write_part(folder, f"{piece.name}-0000", part)[0]
            counts["pages"] += part.read
            done.unreadable = [(at - len(carry), reason) for at, reason in part.unreadable] + done.unreadable
            between = between[end:]
        carry = between + (b"" if done.head is None else done.tail)
        yield from (name for name, _ in done.parts)
        for at, reason in done.unreadable:
            counts["unreadable pages"] += 1
            if counts["unreadable pages"] <= 3:
                notes.append(f"'{dump.path}': the page at byte {offset + at:,} of the text is left out: {reason}")
        offset += done.size
        damage = done.damage
        if damage is None:
            try:
                check_length(carry, offset)
            except InputError as error:
                damage = str(error)
        if damage:
            break
    begin = carry.find(b"<page>")
    if begin < 0 and b"</mediawiki>" in carry and not (damage or dump.damage):
        return
    title = TITLE.search(carry)
    place = f"the page {from_xml(title[1], 'replace')!r}" if title else "a page" if begin >= 0 else "the text"
    byte = offset - len(carry) + max(0, begin)
    reason = damage or dump.damage or "it ends there, without </mediawiki>"
    kept = f"the {counts['pages']:,} pages before it are kept"
    notes.append(f"'{dump.path}' breaks off in {place} at byte {byte:,} of the text: {reason}; {kept}")
