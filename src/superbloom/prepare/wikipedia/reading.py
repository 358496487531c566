"""All pieces of all dump files, parsed by a pool of processes → the names of their parts, counts, and damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from superbloom.config import WikipediaOptions
from superbloom.errors import InputError
from superbloom.prepare.wikipedia.dump import Dump
from superbloom.prepare.wikipedia.parts import TITLE, Parser, Parsing, Rules, check_length, write_part
from superbloom.prepare.wikipedia.report import WikipediaReport
from superbloom.prepare.wikipedia.wikitext import from_xml
from superbloom.prepare.workers import Pool
from superbloom.progress import Progress

MAX_SHOWN = 3  # unreadable pages that are reported one by one


def read_dumps(
    files: list[str], options: WikipediaOptions, folder: Path, processes: int, progress: Progress
) -> tuple[WikipediaReport, list[str]]:
    """Parse all files into the folder; the report so far, and the names of the parts in order."""
    counts: Counter[str] = Counter()
    damage: list[str] = []
    parts: list[str] = []
    with Pool(processes, "run the command again with fewer --workers: it resumes where it stopped") as pool:
        for number, path in enumerate(files):
            with Dump(path, number, progress) as dump:
                rules = Rules(dump.site, options.drop_disambiguations)
                parts += _read_dump(dump, rules, pool, folder, counts, damage)
            if options.strict and damage:
                raise InputError(f"{damage[0]}; without --strict what precedes it is kept")
    if not parts:
        reason = damage[0] if damage else f"no page was found in {', '.join(files)}"
        raise InputError(f"{reason}; give a pages-articles dump")
    return WikipediaReport(dict(counts), damage=damage), parts


def _read_dump(
    dump: Dump, rules: Rules, pool: Pool, folder: Path, counts: Counter[str], damage: list[str]
) -> Iterator[str]:
    """Yield the names of the parts of a file in order, including those of the pages that lie between two pieces.

    Adds to the counts, and a line to `damage` for what is wrong with the file.
    """
    parser = Parser(rules)
    carry, offset, stopped = b"", 0, None
    for piece, done in pool.run(Parsing(rules, folder), dump.pieces()):
        if dump.has_ranges:
            dump.progress(piece.stop - piece.start)
        counts["pages"] += done.pages
        # Usually the head ends a page. But </page> itself may lie on both sides of a cut.
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
            if counts["unreadable pages"] <= MAX_SHOWN:
                damage.append(f"'{dump.path}': the page at byte {offset + at:,} of the text is left out: {reason}")
        offset += done.size
        stopped = done.damage
        if stopped is None:
            try:
                check_length(carry, offset)
            except InputError as error:
                stopped = str(error)
        if stopped:
            break
    begin = carry.find(b"<page>")
    if begin < 0 and b"</mediawiki>" in carry and not (stopped or dump.damage):
        return
    title = TITLE.search(carry)
    place = f"the page {from_xml(title[1], 'replace')!r}" if title else "a page" if begin >= 0 else "the text"
    byte = offset - len(carry) + max(0, begin)
    reason = stopped or dump.damage or "it ends there, without </mediawiki>"
    kept = f"the {counts['pages']:,} pages before it are kept"
    damage.append(f"'{dump.path}' breaks off in {place} at byte {byte:,} of the text: {reason}; {kept}")
