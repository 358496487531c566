"""However a dump is packed, cut into pieces and divided among processes, the corpus is the same."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.dumps import PACK, content, finish, job, rows, run, start, two_pages, varied_pages

pytestmark = pytest.mark.system


# However a dump is packed, cut into pieces and shared among processes, the corpus is the same.


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    pages = varied_pages(320, seed=3)
    for name, pack in PACK.items():
        (folder / name).write_bytes(pack(pages))
    run(folder, job("plain", "--out", "expected", "--workers", 1))
    assert len(rows(folder / "expected")) > 200
    return folder


@pytest.mark.parametrize(
    "way",
    [{}, {"pieces": 33_333, "bare": True}, {"stdin": True}, pytest.param({"pieces": 2_500}, marks=pytest.mark.slow)],
    ids=["one piece", "pieces", "stdin", "small pieces"],
)
def test_packing_and_pieces_do_not_matter(packed: Path, way: dict[str, Any]) -> None:
    jobs = [
        job("-" if "stdin" in way else kind, "--workers", 1, "--out", f"{kind} {way}", **way | {"stdin": kind})
        for kind in PACK
    ]
    results = run(packed, *jobs)
    wrong = {kind: (done.code, done.err) for kind, done in zip(PACK, results, strict=True) if done.code or done.err}
    assert wrong == {}
    assert [kind for kind in PACK if content(packed / f"{kind} {way}") != content(packed / "expected")] == []


@pytest.mark.parametrize(("kind", "workers"), [("plain", 2), ("bz2 of many streams", 3), ("gz", 2)])
def test_number_of_workers_does_not_matter(packed: Path, kind: str, workers: int) -> None:
    out = f"{kind} {workers}"
    done = finish(packed, start(packed, kind, "--out", out, "--workers", workers, "--memory", 4, pieces=20_000))
    assert (done.code, done.err) == (0, "")
    assert content(packed / out) == content(packed / "expected")


def test_piece_may_end_anywhere(tmp_path: Path) -> None:
    text = two_pages()
    (tmp_path / "dump.xml").write_bytes(text)
    sizes = [len(text), 9, 33, *range(text.rindex(b"</text>"), len(text), 2)]
    results = run(tmp_path, *(job("dump.xml", "--open", "--workers", 1, "--out", n, pieces=n) for n in sizes))
    assert {size: done.err for size, done in zip(sizes, results, strict=True) if done.code} == {}
    expected = {"A": ["B", "C"], "B": ["A", "C"]}
    assert [size for size in sizes if rows(tmp_path / str(size)) != expected] == []
